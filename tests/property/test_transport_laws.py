"""Laws of the sequencing under every mix of losses, restarts, reconnects and delays."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from kvevents.transport.settings import DeliverySettings
from kvevents.transport.state import State
from transport_network import Network

STEP_S = 0.25

often = settings(max_examples=max(150, settings().max_examples))
"""Stories are cheap, and what breaks a law takes luck."""

OPERATIONS: list[Callable[[Network], None]] = [
    *[Network.publish] * 6,
    *[Network.deliver] * 4,
    *[Network.reply] * 4,
    *[Network.serve] * 3,
    *[Network.wait] * 2,
    Network.deliver_all,
    Network.publish_nothing,
    Network.deliver_twice,
    Network.lose,
    Network.lose_reply,
    Network.connect,
    Network.disconnect,
    Network.restart,
]


def happens(*without: object) -> st.SearchStrategy[list[int]]:
    kept = [n for n, operation in enumerate(OPERATIONS) if operation not in without]
    return st.lists(st.sampled_from(kept), max_size=120)


def network(*, replay: bool, buffer_steps: int, hold: int = 1_000, snapshots: bool = False) -> Network:
    hold_settings = DeliverySettings(hold_batches=hold)
    return Network(replay=replay, buffer_steps=buffer_steps, snapshots=snapshots, settings=hold_settings)


def run(network: Network, story: list[int]) -> None:
    network.connect()
    for step in story:
        OPERATIONS[step](network)
        assert network.asked < 1_000, "asks without end"
    network.settle()


def assert_in_order(network: Network) -> None:
    """What is held is of one life, in order, each batch once."""
    position = {payload: n for n, payload in enumerate(network.engine.batches)}
    places = [position[payload] for payload in network.applied]
    assert places == sorted(set(places))


@given(happens(), st.sampled_from([2, 5, 1_000]), st.sampled_from([1, 3, 1_000]))
@often
def test_live_means_complete_and_what_is_applied_is_in_order(story: list[int], buffer_steps: int, hold: int) -> None:
    world = network(replay=True, buffer_steps=buffer_steps, hold=hold)
    run(world, story)
    assert_in_order(world)
    assert world.machine.state in {State.LIVE, State.DEGRADED}
    if world.is_live:
        assert world.applied == world.engine.payloads
        tail = len(world.engine.payloads)
        assert all(n >= tail for n in world.engine.dropped), "a batch that never came is missing"


@given(happens(Network.publish_nothing), st.sampled_from([1, 3, 1_000]))
@often
def test_whatever_a_large_replay_buffer_has_is_always_recovered(story: list[int], hold: int) -> None:
    world = network(replay=True, buffer_steps=1_000, hold=hold)
    run(world, story)
    assert world.is_right
    assert world.is_live


@given(happens(), st.sampled_from([1, 2, 5, 1_000]), st.sampled_from([1, 3, 1_000]))
@often
def test_with_snapshots_the_picture_is_right_in_the_end_whatever_was_lost(
    story: list[int], buffer_steps: int, hold: int
) -> None:
    world = network(replay=True, buffer_steps=buffer_steps, hold=hold, snapshots=True)
    run(world, story)
    world.publish()  # shows a batch that was dropped last
    world.settle()
    assert world.is_right
    assert world.is_live


@given(happens())
@often
def test_without_replay_live_means_complete_once_another_batch_came(story: list[int]) -> None:
    world = network(replay=False, buffer_steps=0, hold=10)
    run(world, story)
    world.publish()
    world.settle()
    if world.is_live:
        assert world.is_right
        assert not world.engine.dropped


@given(
    happens(Network.publish_nothing, Network.lose_reply, Network.wait),
    st.sampled_from([2, 5, 1_000]),
    st.booleans(),
)
@often
def test_a_source_is_never_live_and_wrong_for_longer_than_the_detection_bound(
    story: list[int], buffer_steps: int, snapshots: bool
) -> None:
    """However wires lose and stall, as long as the clock is looked at (here: every quarter of a second)."""
    world = network(replay=True, buffer_steps=buffer_steps, snapshots=snapshots)
    bound = world.settings.detection_bound_s + STEP_S
    assert world.settings.detection_bound_s < 2
    wrong_since: float | None = None
    world.connect()
    for step in story:
        OPERATIONS[step](world)
        for _ in range(1 + step % 3):
            deadline = world.tracker.deadline()
            world.now += STEP_S
            if deadline is not None and world.now >= deadline:
                world.tracker.tick()
            if world.is_right or not world.is_live:
                wrong_since = None
            elif wrong_since is None:
                wrong_since = world.now
            assert wrong_since is None or world.now - wrong_since <= bound
