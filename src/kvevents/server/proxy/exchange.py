"""One request on its way: read the prompt, choose a worker, wait for one, try another."""

import asyncio
import enum
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from kvevents.routing import Decision, NoWorkerError
from kvevents.server.errors import HttpError, as_http_error
from kvevents.server.prompts import Prompt
from kvevents.server.proxy.admission import FULL, OTHER_MODEL, TRIED
from kvevents.server.proxy.attempt import Attempt
from kvevents.server.proxy.connection import ClientConnection
from kvevents.server.proxy.deadlines import NEVER
from kvevents.server.proxy.request import Request
from kvevents.server.telemetry.trace import NO_STEP

if TYPE_CHECKING:
    from kvevents.server.proxy.proxy import Proxy

_log = logging.getLogger("kvevents.server")

MAX_DELIVERIES = 2
"""Workers that may fail over one request: one that brings engines down must not bring down all of them."""


class State(enum.Enum):
    """Where an exchange is.

    READING -> WAITING <-> TRYING -> ENDED. READING: the prompt becomes tokens. WAITING: no worker has room. TRYING: a
    worker was chosen; if it fails before anything was sent to the client, another one is.
    """

    READING = enum.auto()
    WAITING = enum.auto()
    TRYING = enum.auto()
    ENDED = enum.auto()


class Exchange:
    """Everything between a whole request and its whole answer. No task of its own: it is driven by what comes.

    Attributes:
        deadline: when it gives up waiting for a worker with room.
    """

    __slots__ = (
        "_attempt",
        "_barred",
        "_began",
        "_client",
        "_deliveries",
        "_id",
        "_is_paused",
        "_prompt",
        "_proxy",
        "_request",
        "_state",
        "_step",
        "_task",
        "_trace",
        "_trouble",
        "_waits_since",
        "deadline",
    )

    def __init__(self, proxy: "Proxy", client: ClientConnection, request: Request) -> None:
        head = request.head
        assert head is not None, "only a request whose head was admitted is answered"
        self._proxy = proxy
        self._client = client
        self._request = request
        self._id = head.request_id or proxy.new_request_id()
        self._trace = proxy.service.telemetry.request(request.path, head.trace, request_id=self._id.decode())
        self._began = proxy.now()
        self._waits_since = 0.0
        self._step = NO_STEP
        self._state = State.READING
        self._prompt = Prompt(tokens=b"")
        self._task: asyncio.Task[None] | None = None
        self._barred: dict[str, str] = {}
        self._deliveries = 0
        self._trouble: str | None = None
        self._attempt: Attempt | None = None
        self._is_paused = False
        self.deadline = NEVER

    @property
    def barred(self) -> Collection[str]:
        """Workers that it must not be sent to."""
        return self._barred

    # What the client's connection calls.

    def start(self) -> None:
        """Read the prompt, then look for a worker."""
        try:
            self._prompt = self._proxy.read_prompt(self._request)
        except Exception as error:
            self._refuse(self._as_refusal(error))
            return
        if self._prompt.needs_tokenizing:
            self._step = self._trace.step("tokenize")
            self._task = asyncio.get_running_loop().create_task(self._tokenize())
        else:
            self._place_first()

    def client_left(self) -> None:
        """The client closed its connection: the worker need not go on."""
        self._proxy.counters.client_left += 1
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.end("client_left")
        self._end(None if attempt is None else attempt.status)

    def pause(self) -> None:
        """The client does not read."""
        self._is_paused = True
        if self._attempt is not None:
            self._attempt.pause()

    def resume(self) -> None:
        """The client reads again."""
        self._is_paused = False
        if self._attempt is not None:
            self._attempt.resume()

    def drain(self) -> None:
        """The router is about to end: what is open may end before."""

    def cut(self) -> None:
        """The router ends and waits no longer."""
        attempt = self._attempt
        if attempt is not None and attempt.status is not None:
            attempt.break_off("the router is shutting down")
            return
        self._attempt = None
        if attempt is not None:
            attempt.end("unanswered")
        self._refuse(HttpError(503, "shutting_down", "the router is shutting down"))

    # What the queue and the clock call.

    def admit(self) -> None:
        """A worker has room."""
        self._place()

    def late(self) -> None:
        """It has waited long enough."""
        self._proxy.counters.queue_timeouts += 1
        waited = f"no worker had room within {self._proxy.settings.waiting_timeout_s:g} s"
        self._refuse(HttpError(503, "queue_timeout", waited, retry_after_s=1))

    # What an attempt calls.

    def on_finished(self, status: int, *, keep_alive: bool) -> None:
        self._attempt = None
        if status == 200:
            self._proxy.service.prefixes.answered(self._prompt)
        self._end(status)
        self._client.answered(keep_alive=keep_alive)

    def on_broken(self, status: int) -> None:
        self._attempt = None
        self._end(status)

    def on_unanswered(self, worker: str, reason: str, *, is_delivered: bool, is_late: bool) -> None:
        self._attempt = None
        self._trouble = f"worker {worker} {reason}"
        self._barred[worker] = TRIED
        self._deliveries += is_delivered
        if is_late:
            self._refuse(HttpError(504, "worker_timeout", self._trouble))
        elif self._deliveries == MAX_DELIVERIES:
            self._refuse(HttpError(502, "worker_failed", f"{self._trouble}, the second over this request"))
        else:
            self._place()

    # The way to a worker.

    async def _tokenize(self) -> None:
        failure: HttpError | None = None
        started = self._proxy.now()
        try:
            self._prompt = await self._proxy.tokenize(self._prompt)
        except Exception as error:
            failure = self._as_refusal(error)
        self._proxy.service.metrics.requests.tokenize_seconds.observe(self._proxy.now() - started)
        self._task = None
        self._step.end()
        if failure is None:
            self._place_first()
        else:
            self._refuse(failure)

    def _place_first(self) -> None:
        prompt, proxy = self._prompt, self._proxy
        proxy.service.ledger.unread += prompt.unread is not None
        self._trace.prompt(tokens=len(prompt.tokens), source=prompt.source, model=prompt.model)
        try:
            self._barred.update(dict.fromkeys(proxy.unfit(prompt.model), OTHER_MODEL))
        except HttpError as error:
            self._refuse(error)
            return
        if proxy.admission.waiting:
            proxy.admit_waiting()  # nobody passes those who wait
        self._place()

    def _place(self) -> None:
        """Choose a worker and send, or wait for one with room, or give up."""
        proxy = self._proxy
        full, barred = proxy.admission.full, self._barred
        step = self._trace.step("select")
        try:
            decision = proxy.choose(self._prompt, dict.fromkeys(full, FULL) | barred if full else barred)
        except NoWorkerError as error:
            step.end()
            if full and self._has_only_no_room(full):
                self._wait()
            else:
                self._give_up(error)
            return
        except Exception as error:
            self._refuse(self._as_refusal(error))
            return
        step.end()
        self._stop_waiting()
        self._state = State.TRYING
        proxy.counters.retried += self._trouble is not None
        self._try(decision)

    def _try(self, decision: Decision) -> None:
        proxy = self._proxy
        proxy.service.ledger.placed(decision, self._prompt.source)
        self._attempt = attempt = Attempt(
            proxy,
            self._client,
            self._request,
            decision,
            owner=self,
            request_id=self._id,
            prompt=self._prompt,
            trace=self._trace,
        )
        try:
            attempt.start(is_paused=self._is_paused)
        except ValueError as error:
            self._attempt = None
            attempt.end("unanswered")
            self._refuse(HttpError(400, "bad_request", f"body: {error}"))

    def _has_only_no_room(self, full: Collection[str]) -> bool:
        """Whether a worker could take this request if it were not full."""
        workers = self._proxy.service.router.workers
        return any(workers.get(worker, False) and worker not in self._barred for worker in full)

    def _wait(self) -> None:
        proxy = self._proxy
        if self._state is State.WAITING:
            return
        if not proxy.admission.wait(self):
            message = f"every worker is busy and {proxy.admission.waiting} requests wait already"
            self._refuse(HttpError(429, "queue_full", message, retry_after_s=1))
            return
        proxy.counters.queued += 1
        self._waits_since = proxy.now()
        self._step = self._trace.step("queue")
        self._state = State.WAITING
        self.deadline = self._waits_since + proxy.settings.waiting_timeout_s
        proxy.deadlines.watch(self)

    def _stop_waiting(self) -> None:
        if self._state is State.WAITING:
            self._proxy.admission.withdraw(self)
            self._proxy.service.metrics.requests.queue_seconds.observe(self._proxy.now() - self._waits_since)
            self._proxy.deadlines.forget(self)
            self.deadline = NEVER
            self._step.end()

    def _give_up(self, error: NoWorkerError) -> None:
        service = self._proxy.service
        service.ledger.unplaced += 1
        why = service.fleet.why_nobody(error)
        if self._trouble is None:
            self._refuse(HttpError(503, "no_worker", why, retry_after_s=1))
        else:
            self._refuse(HttpError(502, "worker_failed", f"{self._trouble}; {why}"))

    # The end.

    def _as_refusal(self, error: Exception) -> HttpError:
        """How an error is told to the client; one that nobody expected is logged."""
        refusal = as_http_error(error)
        if refusal.code == "internal_error":
            _log.exception("request %s failed", self._id.decode())
        return refusal

    def _refuse(self, error: HttpError) -> None:
        """Answer with an error of our own. Nothing was sent to the client yet."""
        self._proxy.counters.reject(error.code)
        self._end(error.status, code=error.code)
        client = self._client
        keep_alive = client.keeps_alive(self._request)
        headers = [*error.headers, (b"x-request-id", self._id)]
        client.reply(error.status, headers, error.body(openai=True), keep_alive=keep_alive)
        client.answered(keep_alive=keep_alive)

    def _end(self, status: int | None, *, code: str | None = None) -> None:
        """Nothing more is expected of anyone."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._stop_waiting()
        self._state = State.ENDED
        self._step.end()
        self._proxy.service.metrics.requests.ended(self._prompt.model, status, self._proxy.now() - self._began)
        self._trace.ended(status, code=code)
        self._proxy.release(self._request)
