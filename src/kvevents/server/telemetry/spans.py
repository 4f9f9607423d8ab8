"""Spans of requests, by OpenTelemetry (the extra `otel`): one of each request, and below it its steps and attempts."""

import threading
from collections.abc import Mapping, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvevents._core import __version__
from kvevents.routing import Decision
from kvevents.server.telemetry.counters import TelemetryCounters
from kvevents.server.telemetry.trace import NO_STEP, AttemptTrace, Headers, Reported, RequestTrace, Step, StepTrace

EXPORT_TIMEOUT_S = 5.0
"""How long the collector may take; also what it may cost to end."""

_PROPAGATOR = TraceContextTextMapPropagator()
_FAILURES = frozenset({"broken", "unanswered"})


class Spans:
    """Makes spans and sends them in batches from a thread of its own.

    Args:
        endpoint: base URL of the collector.
        sample_ratio: share of the requests that are traced when the client does not say.
        service_name: of the router.
        counters: that it keeps.
    """

    def __init__(self, endpoint: str, *, sample_ratio: float, service_name: str, counters: TelemetryCounters) -> None:
        exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces", timeout=EXPORT_TIMEOUT_S)
        self._provider = TracerProvider(
            sampler=ParentBasedTraceIdRatio(sample_ratio),
            resource=Resource.create({"service.name": service_name, "service.version": __version__}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(_Counting(counters))
        self._exporter = _CountingExporter(exporter, counters)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("kvevents")

    def request(self, path: str, headers: Headers, request_id: str) -> "RequestSpans":
        """The span of a request, below the client's if it has one."""
        return RequestSpans(self._tracer, path, headers, request_id)

    def close(self) -> None:
        """Send what waits and end the thread; blocks, for `EXPORT_TIMEOUT_S` at most when nobody takes it."""
        flushing = threading.Thread(target=self._provider.force_flush, name="kvevents-spans", daemon=True)
        flushing.start()
        flushing.join(EXPORT_TIMEOUT_S)
        self._exporter.shutdown()  # from now on batches fail at once
        self._provider.shutdown()


class RequestSpans(RequestTrace):
    """The span of one request, and those below it."""

    __slots__ = ("_here", "_is_ended", "_span", "_tracer")

    def __init__(self, tracer: Tracer, path: str, headers: Headers, request_id: str) -> None:
        self._tracer = tracer
        self._span = tracer.start_span(
            f"POST {path}",
            context=_PROPAGATOR.extract(_carrier(headers), context=Context()),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": "POST", "url.path": path, "kvevents.request_id": request_id},
        )
        self._here = set_span_in_context(self._span, Context())
        self._is_ended = False

    def prompt(self, *, tokens: int, source: str, model: str | None = None) -> None:
        self._span.set_attributes({"kvevents.prompt.tokens": tokens, "kvevents.prompt.source": source})
        if model is not None:
            self._span.set_attribute("gen_ai.request.model", model)

    def step(self, name: Step, /) -> StepTrace:
        if not self._span.is_recording():
            return NO_STEP
        return StepSpan(self._tracer.start_span(name, context=self._here))

    def attempt(self, decision: Decision, /) -> AttemptTrace:
        if not self._span.is_recording():
            return Unsampled(self._here)
        return AttemptSpan(self._tracer, self._here, decision)

    def ended(self, status: int | None, *, code: str | None = None) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        if status is not None:
            self._span.set_attribute("http.response.status_code", status)
        if code is not None:
            self._span.set_attribute("error.type", code)
        if status is not None and status >= 500:
            self._span.set_status(StatusCode.ERROR, code)
        self._span.end()


class StepSpan(StepTrace):
    """The span of one step."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self) -> None:
        if self._span.is_recording():
            self._span.end()


class Unsampled(AttemptTrace):
    """An attempt that makes no span; its worker is told that the request is not traced."""

    __slots__ = ("_here",)

    def __init__(self, here: Context) -> None:
        self._here = here

    @property
    def headers(self) -> Headers:
        return _headers(self._here)


class AttemptSpan(AttemptTrace):
    """The span of one attempt; the worker's own spans come below it."""

    __slots__ = ("_here", "_span")

    def __init__(self, tracer: Tracer, parent: Context, decision: Decision) -> None:
        self._span: Span = tracer.start_span(
            "upstream",
            context=parent,
            kind=SpanKind.CLIENT,
            attributes={
                "kvevents.worker": decision.worker,
                "kvevents.dp_rank": decision.dp_rank,
                "kvevents.policy": decision.policy,
                "kvevents.cached_tokens.expected": decision.cached_tokens,
                "kvevents.prompt.tokens": decision.prompt_tokens,
            },
        )
        self._here = set_span_in_context(self._span, parent)

    @property
    def headers(self) -> Headers:
        return _headers(self._here)

    def first_byte(self) -> None:
        self._span.add_event("first byte")

    def ended(self, outcome: str, usage: Reported | None = None) -> None:
        if not self._span.is_recording():
            return
        self._span.set_attribute("kvevents.outcome", outcome)
        if usage is not None:
            self._span.set_attribute("kvevents.cached_tokens.reported", usage.cached_tokens)
        if outcome in _FAILURES:
            self._span.set_status(StatusCode.ERROR, outcome)
        self._span.end()


class _Counting(SpanProcessor):
    def __init__(self, counters: TelemetryCounters) -> None:
        self._counters = counters

    def on_end(self, span: ReadableSpan) -> None:
        self._counters.spans_recorded += span.context.trace_flags.sampled


class _CountingExporter(SpanExporter):
    """Counts what became of spans; a collector that fails is a counter, and a warning of OpenTelemetry's own."""

    def __init__(self, inner: SpanExporter, counters: TelemetryCounters) -> None:
        self._inner = inner
        self._counters = counters
        self._is_shut = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._counters.spans_exported += len(spans)
        else:
            self._counters.spans_failed += len(spans)
        return result

    def shutdown(self) -> None:
        if not self._is_shut:  # it warns of a second time
            self._is_shut = True
            self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


def _headers(here: Context) -> Headers:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=here)
    return [(name.encode(), value.encode()) for name, value in carrier.items()]


def _carrier(headers: Headers) -> Mapping[str, list[str]]:
    """What the client says of its trace; `tracestate` may come in parts."""
    carrier: dict[str, list[str]] = {}
    for name, value in headers:
        if (key := name.lower()) in {b"traceparent", b"tracestate"}:
            carrier.setdefault(key.decode(), []).append(value.decode("latin-1"))
    return carrier
