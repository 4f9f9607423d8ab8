"""One decision carried out: the request to its worker, the reply to the client, and the books on both."""

import logging
from typing import TYPE_CHECKING, Protocol

import msgspec

from kvevents.routing import Decision
from kvevents.server.ledger import Outcome
from kvevents.server.prompts import Prompt
from kvevents.server.proxy.connection import ClientConnection
from kvevents.server.proxy.deadlines import NEVER
from kvevents.server.proxy.delivery import Delivery
from kvevents.server.proxy.heads import ReplyHead
from kvevents.server.proxy.outgoing import decision_lines, request_head
from kvevents.server.proxy.prefill import Prefill, with_bootstrap
from kvevents.server.proxy.reply import Reply
from kvevents.server.proxy.request import Request
from kvevents.server.proxy.upstream import Taker
from kvevents.server.telemetry.trace import RequestTrace
from kvevents.server.usage import Usage

if TYPE_CHECKING:
    from kvevents.server.proxy.proxy import Proxy


_log = logging.getLogger("kvevents.server")


class AttemptOwner(Protocol):
    """Who has a decision carried out. The attempt has ended, and is in the books, when it is told."""

    def on_finished(self, status: int, *, keep_alive: bool) -> None:
        """The client has the whole reply."""

    def on_broken(self, status: int) -> None:
        """The client has the beginning of one and no more comes; its connection has been seen to."""

    def on_unanswered(self, worker: str, reason: str, *, is_delivered: bool, is_late: bool) -> None:
        """A worker failed before anything was sent to the client.

        Args:
            worker: the one that failed.
            reason: how.
            is_delivered: whether the request may have reached it, which then may have failed over it.
            is_late: whether it was given all its time.
        """


class Attempt:
    """Has one worker answer, and another compute the prompt where the two are apart.

    Attributes:
        decision: what is carried out.
        deadline: when the worker has had its time.
    """

    __slots__ = (
        "_client",
        "_delivery",
        "_is_paused",
        "_owner",
        "_prefill",
        "_prompt",
        "_prompt_tokens",
        "_proxy",
        "_reply",
        "_request",
        "_request_id",
        "_sent_at",
        "_told",
        "_usage",
        "deadline",
        "decision",
    )

    def __init__(
        self,
        proxy: "Proxy",
        client: ClientConnection,
        request: Request,
        decision: Decision,
        *,
        owner: AttemptOwner,
        request_id: bytes,
        prompt: Prompt,
        trace: RequestTrace,
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._request = request
        self._owner = owner
        self._request_id = request_id
        self._prompt = prompt
        self._told = trace.attempt(decision)
        self._delivery: Delivery | None = None
        self._prefill: Prefill | None = None
        self._reply = Reply(client, is_http_1_0=request.is_http_1_0)
        self._is_paused = False
        self._sent_at = 0.0
        self._usage: Usage | None = None
        self._prompt_tokens: int | None = None
        self.decision = decision
        self.deadline = NEVER

    @property
    def status(self) -> int | None:
        """Of the reply that the client has the beginning of; None while it has nothing."""
        return self._reply.status if self._reply.is_begun else None

    # What its owner calls.

    def start(self, *, is_paused: bool) -> None:
        """Send the request.

        Raises:
            ValueError: it has to be divided between two workers, and its body is no JSON object.
        """
        proxy, fleet, decision, prefill = self._proxy, self._proxy.service.fleet, self.decision, self.decision.prefill
        proxy.deadlines.watch(self)
        proxy.admission.enter(decision.worker)
        self._is_paused = is_paused
        if prefill is not None:
            proxy.admission.enter(prefill.worker)
        for chosen in (decision, prefill):
            if chosen is not None and chosen.worker not in fleet:  # it left between two instructions of another thread
                self._fail(chosen.worker, "has left", is_delivered=False)
                return
        body = self._request.body
        if prefill is not None:
            worker = fleet[prefill.worker]
            body = with_bootstrap(
                body, url=worker.url, port=worker.bootstrap_port, ranks=worker.ranks, dp_rank=prefill.dp_rank
            )
            self._prefill = Prefill(proxy, self, worker.url, self._head_for(prefill, body), body)
        self._delivery = Delivery(proxy.pool, self, fleet[decision.worker].url, self._head_for(decision, body), body)
        if is_paused:
            self._delivery.pause()
        if self._prefill is not None:
            self._prefill.start()
        self.deadline = proxy.now() + proxy.settings.connect_timeout_s
        self._delivery.start()

    def pause(self) -> None:
        """The client does not read: let the worker wait."""
        self._is_paused = True
        self.deadline = NEVER  # the client's connection has one for that
        if self._delivery is not None:
            self._delivery.pause()

    def resume(self) -> None:
        """The client reads again."""
        self._is_paused = False
        self.deadline = self._proxy.now() + self._proxy.settings.idle_timeout_s
        if self._delivery is not None:
            self._delivery.resume()

    def end(self, outcome: Outcome) -> None:
        """It is over: let go of the workers, and put it in the books."""
        self.deadline = NEVER
        proxy, decision, prefill = self._proxy, self.decision, self.decision.prefill
        service = proxy.service
        proxy.deadlines.forget(self)
        if self._delivery is not None:
            self._delivery.drop()
        if self._prefill is not None and outcome != "ok":
            self._prefill.drop()
        (service.router.complete if outcome == "ok" else service.router.fail)(decision)
        usage = self._usage if outcome == "ok" else None
        proxy.counters.unreported += outcome == "ok" and usage is None
        try:
            self._told.ended(outcome, usage)
            service.ledger.ended(decision, outcome, usage)
        except Exception:  # whoever listens there must not leave the client without an end
            _log.exception("request %s is not in the books", self._request_id.decode())
        if outcome == "ok" and self._prompt_tokens is not None:
            service.prompts.observe(self._prompt, self._prompt_tokens)
        if prefill is not None:
            proxy.admission.leave(prefill.worker)
        proxy.admission.leave(decision.worker)

    def break_off(self, trouble: str) -> None:
        """End the reply in the middle."""
        is_at_boundary = self._delivery is None or self._delivery.is_at_boundary
        self._proxy.counters.broken_streams += 1
        self.end("broken")
        self._owner.on_broken(self._reply.status)
        self._reply.break_off(_error_event(trouble), is_at_boundary=is_at_boundary, keep_alive=self._keeps_alive())

    def late(self) -> None:
        """The worker has had its time."""
        delivery = self._delivery
        if delivery is not None and delivery.upstream is None:
            self._fail(self.decision.worker, "no connection in time", is_delivered=delivery.has_reconnected)
            return
        if self._prompt.is_stream and not self._reply.is_begun:
            self._proxy.counters.first_byte_timeouts += 1
        else:
            self._proxy.counters.idle_timeouts += 1
        self._fail(self.decision.worker, "sent nothing for too long", is_late=True)

    # What the deliveries call.

    def on_sent(self) -> None:
        now, settings = self._proxy.now(), self._proxy.settings
        self._sent_at = now
        self.deadline = now + (settings.first_byte_timeout_s if self._prompt.is_stream else settings.idle_timeout_s)

    def on_unreachable(self, reason: str, *, is_delivered: bool) -> None:
        self._fail(self.decision.worker, reason, is_delivered=is_delivered)

    def on_head(self, head: ReplyHead) -> Taker:
        return self._reply.begin(head)

    def on_data(self, data: bytes, *, is_complete: bool) -> None:
        reply, now = self._reply, self._proxy.now()
        if is_complete:
            self._usage = reply.tail.usage()
            self._prompt_tokens = reply.tail.prompt_tokens()
        if reply.is_begun:
            reply.send(data)
        else:
            self._begin_reply(data, now, is_complete=is_complete)
        if is_complete:
            self._finish()
        elif not self._is_paused:
            self.deadline = now + self._proxy.settings.idle_timeout_s

    def on_failure(self, reason: str, *, is_garbage: bool, has_begun: bool) -> None:
        self._proxy.counters.garbage += is_garbage
        if self._delivery is not None and self._delivery.reconnect(has_begun=has_begun):
            self._proxy.counters.reconnected += 1
            self.deadline = self._proxy.now() + self._proxy.settings.connect_timeout_s
        else:
            self._fail(self.decision.worker, reason)

    def on_prefill_ended(self) -> None:
        self._prefill = None

    def on_prefill_failed(self, reason: str) -> None:
        prefill, self._prefill = self.decision.prefill, None
        assert prefill is not None, "a prefill worker was chosen"
        self._fail(prefill.worker, reason)

    # The rest.

    def _begin_reply(self, data: bytes, now: float, *, is_complete: bool) -> None:
        """Send the reply's head with its first bytes; a short answer when it is whole."""
        reply, decision, service = self._reply, self.decision, self._proxy.service
        if reply.status == 200 and not reply.is_held:
            service.router.prefill_done(decision)
            service.metrics.requests.first_byte(decision.worker, now - self._sent_at)
            self._told.first_byte()
        if not is_complete and reply.hold(data):
            return
        lines = decision_lines(decision, service.fleet.index.block_size) + b"x-request-id: %b\r\n" % self._request_id
        if self._usage is not None:  # complete
            lines += b"x-kvevents-reported-cached-tokens: %d\r\n" % self._usage.cached_tokens
        reply.send_head(lines, data, keep_alive=self._keeps_alive())
        if self._delivery is not None:  # nobody will be sent the request again, and its answer may take long
            self._delivery.let_go()
        self._request.let_go()
        self._proxy.release(self._request)

    def _finish(self) -> None:
        """The reply is complete."""
        if self._delivery is not None:
            self._delivery.complete()
            self._delivery = None
        status, keep_alive = self._reply.status, self._keeps_alive()
        self.end("ok" if status == 200 else "refused")
        self._owner.on_finished(status, keep_alive=keep_alive)

    def _fail(self, worker: str, reason: str, *, is_delivered: bool = True, is_late: bool = False) -> None:
        """A worker gives no answer, or no more of it."""
        self._proxy.service.fleet.suspect(worker, reason)
        if self._reply.is_begun:
            self.break_off(f"worker {worker} {reason}")
        else:
            self.end("unanswered")
            self._owner.on_unanswered(worker, reason, is_delivered=is_delivered, is_late=is_late)

    def _keeps_alive(self) -> bool:
        head = self._reply.head
        return self._client.keeps_alive(self._request) and (head is None or not head.ends_with_connection)

    def _head_for(self, decision: Decision, body: bytes) -> bytes:
        """The head of the request as a worker gets it."""
        head = self._request.head
        assert head is not None, "only a request whose head was admitted is answered"
        return request_head(
            self._proxy.service.fleet[decision.worker],
            self._request.target,
            head,
            request_id=self._request_id,
            dp_rank=decision.dp_rank,
            hops=self._proxy.hops(head),
            trace=self._told.headers or head.trace,
            length=len(body),
        )


def _error_event(message: str) -> bytes:
    """The server-sent event that ends a stream whose worker failed."""
    error = {"message": message, "type": "server_error", "param": None, "code": "worker_failed"}
    return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"
