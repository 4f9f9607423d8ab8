"""The queue of requests that found no room, as a machine without sockets or clock."""

from collections.abc import Collection

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvevents.server.proxy.admission import Admission

WORKERS = ("a", "b", "c")


class Request:
    """Takes the first worker with room that it may use, as a router that prefers the alphabet would."""

    def __init__(self, machine: "Queue", number: int, barred: frozenset[str]) -> None:
        self.machine = machine
        self.number = number
        self.barred: Collection[str] = barred

    def admit(self) -> None:
        admission = self.machine.admission
        free = [worker for worker in WORKERS if worker not in admission.full and worker not in self.barred]
        if free:
            admission.withdraw(self)
            admission.enter(free[0])
            self.machine.running.append((free[0], self))
            self.machine.waiting.remove(self)


class Queue(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.limits: dict[str, int | None] = {"a": 1, "b": 2, "c": None}
        self.admission = Admission(lambda worker: self.limits[worker], max_waiting=4)
        self.running: list[tuple[str, Request]] = []
        self.waiting: list[Request] = []
        self.number = 0

    @rule(barred=st.frozensets(st.sampled_from(WORKERS), max_size=2))
    def comes(self, barred: frozenset[str]) -> None:
        self.number += 1
        request = Request(self, self.number, barred)
        earlier = list(self.waiting)
        self.waiting.append(request)
        request.admit()
        if request in self.waiting:
            is_in = self.admission.wait(request)
            assert is_in is (len(earlier) < 4)
            if not is_in:
                self.waiting.remove(request)
        else:
            worker, _ = self.running[-1]
            assert all(worker in one.barred for one in earlier), "it passed somebody who waits for that worker"

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.running) - 1))
        worker, _ = self.running.pop(place)
        could = [one for one in self.waiting if worker not in one.barred]
        limit = self.limits[worker]
        has_room = limit is None or sum(name == worker for name, _ in self.running) < limit
        self.admission.leave(worker)
        if could and has_room:
            assert could[0] not in self.waiting, "the first who could use the room did not get it"

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def gives_up(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.waiting))
        self.admission.withdraw(request)
        self.waiting.remove(request)

    @rule(worker=st.sampled_from(WORKERS), limit=st.sampled_from([1, 2, 3, None]))
    def limit_changes(self, worker: str, limit: int | None) -> None:
        self.limits[worker] = limit
        self.admission.refresh(WORKERS)

    @invariant()
    def books_are_right(self) -> None:
        self.admission.check_integrity()
        assert self.admission.waiting == len(self.waiting)
        assert sum(self.admission.in_flight.values()) == len(self.running)

    @invariant()
    def nobody_waits_for_a_worker_with_room(self) -> None:
        for request in self.waiting:
            assert all(worker in self.admission.full for worker in WORKERS if worker not in request.barred)


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
