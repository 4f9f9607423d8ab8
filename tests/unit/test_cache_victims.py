from array import array

from kvevents._core.tokens import TokenPages
from kvevents.caches.eviction import EvictionPolicy, lru, mru
from kvevents.caches.node import Node
from kvevents.caches.victims import SLACK, VictimQueue
from kvevents.hashing import HashChain


def leaf(last_access: int) -> Node:
    node = Node(TokenPages([1], 1), HashChain.root(1), array("q", [0]))
    node.parent = Node(TokenPages([], 1), HashChain.root(1), array("q"))
    node.last_access = last_access
    return node


def leaves(order: EvictionPolicy) -> VictimQueue:
    return VictimQueue(order, lambda node: not node.children and not node.locks and node.parent is not None)


def test_a_node_that_came_to_stand_later_is_put_back() -> None:
    queue = leaves(lru)
    first, second = leaf(1), leaf(2)
    queue.offer(first)
    queue.offer(second)
    first.last_access = 3
    queue.offer(first)
    assert [queue.pop(), queue.pop(), queue.pop()] == [second, first, None]


def test_a_node_that_came_to_stand_earlier_comes_earlier_and_once() -> None:
    queue = leaves(mru)
    first, second = leaf(1), leaf(2)
    queue.offer(first)
    queue.offer(second)
    first.last_access = 3
    queue.offer(first)
    assert [queue.pop(), queue.pop(), queue.pop()] == [first, second, None]


def test_a_node_with_a_lock_or_a_child_waits_until_it_is_offered_again() -> None:
    queue = leaves(lru)
    node, child = leaf(1), leaf(2)
    queue.offer(node)
    node.locks = 1
    assert queue.pop() is None
    queue.offer(node)
    node.locks = 0
    queue.offer(node)
    node.children[b"page"] = child
    assert queue.pop() is None
    node.children.clear()
    queue.offer(node)
    assert queue.pop() is node


def test_neither_a_root_nor_a_node_that_left_is_a_victim() -> None:
    queue = leaves(lru)
    node = leaf(1)
    node.parent = None
    queue.offer(node)
    assert queue.pop() is None


def test_stale_entries_are_swept() -> None:
    queue = leaves(mru)
    nodes = [leaf(at) for at in range(10)]
    for now in range(10, 2000):
        node = nodes[now % 10]
        node.last_access = now
        queue.offer(node)
    assert len(queue._heap) <= 2 * 10 + SLACK + 1
    taken = [queue.pop() for _ in range(11)]
    assert taken == [*sorted(nodes, key=mru), None]
