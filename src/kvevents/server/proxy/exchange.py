"""One request on its way: choose a worker, pass the bytes on unchanged, keep the books."""

import asyncio
import enum
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from kvevents.errors import KVEventsError
from kvevents.routing import Decision, NoWorkerError
from kvevents.server.errors import HttpError, as_http_error
from kvevents.server.ledger import Outcome
from kvevents.server.prompts import Prompt
from kvevents.server.proxy.connection import ClientConnection
from kvevents.server.proxy.deadlines import NEVER
from kvevents.server.proxy.heads import ReplyHead
from kvevents.server.proxy.outgoing import decision_lines, request_head
from kvevents.server.proxy.request import Request
from kvevents.server.proxy.upstream import Upstream
from kvevents.server.telemetry.trace import NO_ATTEMPT, NO_STEP, NO_TRACE
from kvevents.server.usage import UsageTail

if TYPE_CHECKING:
    from kvevents.server.proxy.proxy import Proxy

MAX_DELIVERIES = 2
"""Workers that may fail over one request: one that brings engines down must not bring down all of them."""

HELD_BYTES = 256 * 2**10
"""An answer of at most this length that is not streamed is sent on when it is whole: until then another worker can
still take over, and what was found cached can be said in a header."""


class State(enum.Enum):
    """Where an exchange is.

    READING -> WAITING <-> CONNECTING -> SENT -> STREAMING -> ENDED. SENT: the worker has the request and the client
    has nothing yet; a failure up to there goes back to another worker. STREAMING: the client has the beginning of the
    reply, and no other is possible.
    """

    READING = enum.auto()
    WAITING = enum.auto()
    CONNECTING = enum.auto()
    SENT = enum.auto()
    STREAMING = enum.auto()
    ENDED = enum.auto()


class Exchange:
    """Everything between a whole request and its whole answer. No task of its own: it is driven by what comes.

    Attributes:
        deadline: when it gives up on what it waits for.
    """

    def __init__(self, proxy: "Proxy", client: ClientConnection, request: Request) -> None:
        self._proxy = proxy
        self._service = proxy.service
        self._client = client
        self._request = request
        assert request.head is not None, "only a request whose head was admitted is answered"
        self._head = request.head
        self._id = request.head.request_id or proxy.new_request_id()
        self._state = State.READING
        self._prompt = Prompt(tokens=b"")
        self._task: asyncio.Task[None] | None = None
        self._tried: set[str] = set()
        self._deliveries = 0
        self._trouble: str | None = None
        self._decision: Decision | None = None
        self._upstream: Upstream | None = None
        self._reconnects = False
        self._may_have_arrived = False
        self._reply: ReplyHead | None = None
        self._held: list[bytes] = []
        self._is_paused = False
        self._unframed: list[bytes] | None = None
        self._tail = UsageTail()
        self._sent_at = 0.0
        self._began = proxy.now()
        self._waits_since = 0.0
        self._trace = NO_TRACE
        self._attempt_trace = NO_ATTEMPT
        self._wait_trace = NO_STEP
        self.deadline = NEVER

    @property
    def barred(self) -> Collection[str]:
        """Workers that it must not be sent to."""
        return self._tried

    # What the client's connection calls.

    def start(self) -> None:
        """Read the prompt, then look for a worker."""
        self._proxy.deadlines.watch(self)
        request = self._request
        self._trace = self._service.telemetry.request(request.path, request.headers, request_id=self._id.decode())
        try:
            self._prompt = self._proxy.read_prompt(self._request)
        except HttpError as error:
            self._refuse(error)
            return
        if self._prompt.needs_tokenizing:
            self._task = asyncio.get_running_loop().create_task(self._tokenize())
        else:
            self._place_first()

    def client_left(self) -> None:
        """The client closed its connection: the worker need not go on."""
        self._proxy.counters.client_left += 1
        if self._upstream is not None:
            self._upstream.drop()
        self._close_attempt("client_left")
        self._end(self._status_sent())

    def pause(self) -> None:
        """The client does not read: let the worker wait."""
        self._is_paused = True
        self.deadline = NEVER
        if self._upstream is not None:
            self._upstream.pause_reading()

    def resume(self) -> None:
        """The client reads again."""
        self._is_paused = False
        if self._upstream is not None:
            self.deadline = self._proxy.now() + self._proxy.settings.idle_timeout_s
            self._upstream.resume_reading()

    def drain(self) -> None:
        """The router is about to end: what is open may end before."""

    def cut(self) -> None:
        """The router ends and waits no longer."""
        if self._upstream is not None:
            self._upstream.drop()
        if self._state is State.STREAMING:
            self._break_off("the router is shutting down")
        else:
            self._close_attempt("unanswered")
            self._refuse(HttpError(503, "shutting_down", "the router is shutting down"))

    # What the queue and the clock call.

    def admit(self) -> None:
        """A worker has room."""
        self._place()

    def late(self) -> None:
        """The time for what it waits for is over."""
        self.deadline = NEVER
        counters = self._proxy.counters
        if self._state is State.WAITING:
            counters.queue_timeouts += 1
            waited = f"no worker had room within {self._proxy.settings.waiting_timeout_s:g} s"
            self._refuse(HttpError(503, "queue_timeout", waited, retry_after_s=1))
            return
        if self._upstream is None:
            return
        self._upstream.drop()
        if self._reply is None and self._prompt.is_stream:
            counters.first_byte_timeouts += 1
        else:
            counters.idle_timeouts += 1
        self._failed("sent nothing for too long", is_late=True)

    # What the worker's connection calls.

    def on_head(self, head: ReplyHead) -> None:
        self._reply = head
        if head.is_chunked and self._request.is_http_1_0:  # no chunks for this client
            self._unframed = []

    def on_body(self, piece: bytes) -> None:
        self._tail.feed(piece)
        if self._unframed is not None:
            self._unframed.append(piece)

    def on_data(self, data: bytes, *, is_complete: bool) -> None:
        if self._unframed is not None:
            data = b"".join(self._unframed)
            self._unframed.clear()
        if self._state is State.STREAMING:
            self._client.write(data)
            if is_complete:
                self._finish()
            elif not self._is_paused:
                self.deadline = self._proxy.now() + self._proxy.settings.idle_timeout_s
        elif data or is_complete:
            self._on_first_data(data, is_complete=is_complete)

    def on_failure(self, reason: str, *, is_garbage: bool, has_begun: bool) -> None:
        upstream = self._upstream
        self._proxy.counters.garbage += is_garbage
        if upstream is not None and upstream.is_used and not has_begun and not self._reconnects:
            # It was kept open, and the worker closed it in the moment it was used again: that says nothing about the
            # worker. Should the request have arrived all the same, this one more time is all.
            self._reconnects = self._may_have_arrived = True
            self._proxy.counters.reconnected += 1
            self._upstream = None
            self._connect()
            return
        self._failed(reason)

    # The way of the request.

    async def _tokenize(self) -> None:
        started = self._proxy.now()
        try:
            with self._trace.step("tokenize"):
                self._prompt = await self._proxy.tokenize(self._prompt)
            self._service.metrics.requests.tokenize_seconds.observe(self._proxy.now() - started)
        except KVEventsError as error:
            self._task = None
            self._refuse(as_http_error(error))
        except HttpError as error:
            self._task = None
            self._refuse(error)
        else:
            self._task = None
            self._place_first()

    def _place_first(self) -> None:
        prompt, service = self._prompt, self._service
        service.ledger.unread += prompt.unread is not None
        self._trace.prompt(tokens=len(prompt.tokens), source=prompt.source, model=prompt.model)
        try:
            self._tried.update(self._proxy.unfit(prompt.model))
        except HttpError as error:
            self._refuse(error)
            return
        self._place()

    def _place(self) -> None:
        """Choose a worker and send, or wait for one with room, or give up."""
        admission = self._proxy.admission
        if admission.waiting and self._state is not State.WAITING:
            admission.admit_waiting(self._service.fleet.router.workers)  # nobody passes those who wait
        full = admission.full()
        try:
            with self._trace.step("select"):
                decision = self._proxy.choose(self._prompt, self._tried | full if full else self._tried)
        except NoWorkerError as error:
            if self._would_be_placed(full):
                self._wait()
            else:
                self._give_up(error)
            return
        self._stop_waiting()
        admission.enter(decision.worker)
        self._service.ledger.placed(decision, self._prompt.source)
        self._attempt_trace = self._trace.attempt(decision)
        self._decision = decision
        self._reply = None
        self._held.clear()
        self._reconnects = False
        self._may_have_arrived = False
        self._tail = UsageTail()
        if decision.worker not in self._service.fleet:  # it left between two instructions of another thread
            self._failed("left the fleet", is_delivered=False)
            return
        upstream = self._proxy.pool.take(self._service.fleet[decision.worker].url)
        if upstream is not None:
            self._send(upstream)
        else:
            self._connect()

    def _would_be_placed(self, full: Collection[str]) -> bool:
        """Whether a worker that could take this request has only no room at the moment."""
        workers = self._service.router.workers
        return any(workers.get(worker, False) and worker not in self._tried for worker in full)

    def _wait(self) -> None:
        proxy = self._proxy
        if self._state is State.WAITING:
            return
        if not proxy.admission.wait(self):
            message = f"every worker is busy and {proxy.admission.waiting} requests wait already"
            self._refuse(HttpError(429, "queue_full", message, retry_after_s=1))
            return
        proxy.counters.queued += 1
        self._state = State.WAITING
        self._waits_since = proxy.now()
        self._wait_trace = self._trace.step("queue")
        self.deadline = proxy.now() + proxy.settings.waiting_timeout_s

    def _give_up(self, error: NoWorkerError) -> None:
        self._service.ledger.unplaced += 1
        if self._trouble is None:
            self._refuse(HttpError(503, "no_worker", str(error), retry_after_s=1))
        else:
            self._refuse(HttpError(502, "worker_failed", f"{self._trouble}; {error}"))

    def _connect(self) -> None:
        self._state = State.CONNECTING
        self.deadline = NEVER  # the pool has its own
        decision = self._chosen()
        if decision.worker not in self._service.fleet:
            self._failed("left the fleet", is_delivered=self._may_have_arrived)
            return
        url = self._service.fleet[decision.worker].url
        self._task = self._proxy.pool.connect(url, self._on_connected, self._on_refused)

    def _on_connected(self, upstream: Upstream) -> None:
        self._task = None
        if self._chosen().worker not in self._service.fleet:
            upstream.drop()
            self._failed("left the fleet", is_delivered=self._may_have_arrived)
            return
        self._send(upstream)

    def _on_refused(self, reason: str) -> None:
        self._task = None
        self._failed(reason, is_delivered=self._may_have_arrived)

    def _send(self, upstream: Upstream) -> None:
        decision, proxy = self._chosen(), self._proxy
        worker = self._service.fleet[decision.worker]
        self._upstream = upstream
        self._state = State.SENT
        head = request_head(
            worker,
            self._request,
            self._head,
            request_id=self._id,
            dp_rank=decision.dp_rank,
            hops=proxy.hops(self._head),
            length=len(self._request.body),
            trace=self._attempt_trace.headers,
        )
        self._sent_at = proxy.now()
        settings = proxy.settings
        patience_s = settings.first_byte_timeout_s if self._prompt.is_stream else settings.idle_timeout_s
        self.deadline = self._sent_at + patience_s
        upstream.send(self, head, self._request.body)
        if self._is_paused:
            upstream.pause_reading()

    # The way of the reply.

    def _on_first_data(self, data: bytes, *, is_complete: bool) -> None:
        """Send the reply's head with its first bytes; hold a short answer until it is whole."""
        reply = self._reply
        assert reply is not None, "data comes after the head"
        if not self._held and reply.status == 200:
            service = self._service
            service.router.prefill_done(self._chosen())
            service.metrics.requests.first_byte(self._chosen().worker, self._proxy.now() - self._sent_at)
            self._attempt_trace.first_byte()
        self.deadline = self._proxy.now() + self._proxy.settings.idle_timeout_s
        if not is_complete and reply.length is not None and reply.length <= HELD_BYTES and not reply.is_event_stream:
            self._held.append(data)
            return
        keep_alive = self._client.keeps_alive(self._request) and not reply.ends_with_connection
        lines = [reply.first_line if reply.first_line.startswith(b"HTTP/1.1") else b"HTTP/1.1" + reply.first_line[8:]]
        lines += (b"\r\n", reply.passed)
        if reply.is_chunked and self._unframed is None:
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(decision_lines(self._chosen(), self._service.fleet.index.block_size))
        lines.append(b"x-request-id: %b\r\n" % self._id)
        if is_complete and not reply.is_event_stream and (usage := self._tail.usage()) is not None:
            lines.append(b"x-kvevents-reported-cached-tokens: %d\r\n" % usage.cached_tokens)
        if not keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        lines += self._held
        lines.append(data)
        self._state = State.STREAMING
        self._client.write(b"".join(lines))
        if is_complete:
            self._finish()

    def _finish(self) -> None:
        """The reply is complete."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            if self._is_paused:
                upstream.resume_reading()
            self._proxy.pool.give_back(upstream)
        reply = self._reply
        assert reply is not None, "a reply that is complete has a head"
        self._close_attempt("ok" if reply.status == 200 else "refused")
        self._end(reply.status)
        self._client.answered(keep_alive=self._client.keeps_alive(self._request) and not reply.ends_with_connection)

    # When it fails.

    def _failed(self, reason: str, *, is_delivered: bool = True, is_late: bool = False) -> None:
        """This worker gives no answer, or no more of it."""
        decision = self._chosen()
        self._service.fleet.suspect(decision.worker, reason)
        trouble = f"worker {decision.worker} {reason}"
        if self._state is State.STREAMING:
            self._break_off(trouble)
            return
        self._close_attempt("unanswered")
        self._trouble = trouble
        self._tried.add(decision.worker)
        self._deliveries += is_delivered
        if is_late:
            self._refuse(HttpError(504, "worker_timeout", trouble))
        elif self._deliveries == MAX_DELIVERIES:
            self._refuse(HttpError(502, "worker_failed", f"{trouble}, the second over this request"))
        else:
            self._proxy.counters.retried += 1
            self._place()

    def _break_off(self, trouble: str) -> None:
        """End a reply in the middle: an event stream says so, of any other the length does."""
        reply, upstream = self._reply, self._upstream
        assert reply is not None, "a reply that is passed on has a head"
        self._proxy.counters.broken_streams += 1
        self._close_attempt("broken")
        self._end(reply.status)
        client = self._client
        is_at_boundary = upstream is None or upstream.is_at_boundary
        if reply.is_event_stream and is_at_boundary and reply.length is None:
            event = (b"" if self._tail.ends_an_event() else b"\n\n") + _error_event(trouble)
            if reply.is_chunked and self._unframed is None:
                event = b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)
            client.write(event)
            client.answered(keep_alive=False)
        elif reply.ends_with_connection or self._unframed is not None:
            client.transport.abort()  # an orderly end would make it look whole
        else:
            client.answered(keep_alive=False)

    def _refuse(self, error: HttpError) -> None:
        """Answer with an error of our own. Nothing was sent to the client yet."""
        self._proxy.counters.reject(error.code)
        self._end(error.status, code=error.code)
        client = self._client
        keep_alive = client.keeps_alive(self._request)
        headers = [*error.headers, (b"x-request-id", self._id)]
        client.reply(error.status, headers, error.body(openai=True), keep_alive=keep_alive)
        client.answered(keep_alive=keep_alive)

    # The books.

    def _chosen(self) -> Decision:
        assert self._decision is not None, "a worker was chosen"
        return self._decision

    def _close_attempt(self, outcome: Outcome) -> None:
        """What was begun on a worker is over."""
        decision, self._decision = self._decision, None
        self._upstream = None
        if decision is None:
            return
        service = self._service
        (service.router.complete if outcome == "ok" else service.router.fail)(decision)
        usage = self._tail.usage() if outcome == "ok" else None
        self._proxy.counters.unreported += outcome == "ok" and usage is None
        service.ledger.ended(decision, outcome, usage)
        self._attempt_trace.ended(outcome, usage)
        self._proxy.admission.leave(decision.worker)

    def _status_sent(self) -> int | None:
        """Of the reply that the client has the beginning of."""
        return self._reply.status if self._reply is not None and self._state is State.STREAMING else None

    def _stop_waiting(self) -> None:
        """Leave the queue, if it was in it."""
        if self._state is State.WAITING:
            self._service.metrics.requests.queue_seconds.observe(self._proxy.now() - self._waits_since)
            self._wait_trace.end()
            self._state = State.CONNECTING
        self._proxy.admission.withdraw(self)

    def _end(self, status: int | None, *, code: str | None = None) -> None:
        """Nothing more is expected of anyone; the client's answer has this status, if it has one."""
        self._stop_waiting()
        self._service.metrics.requests.ended(self._prompt.model, status, self._proxy.now() - self._began)
        self._trace.ended(status, code=code)
        self._state = State.ENDED
        self.deadline = NEVER
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._proxy.deadlines.forget(self)
        self._proxy.release(self._request)


def _error_event(message: str) -> bytes:
    """The server-sent event that ends a stream whose worker failed."""
    error = {"message": message, "type": "server_error", "param": None, "code": "worker_failed"}
    return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"
