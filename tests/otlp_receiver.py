"""An OpenTelemetry collector as small as one can be: OTLP over HTTP, its protobuf parsed."""

import threading
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2


class ReceivedSpan(NamedTuple):
    """What a test asks of a span."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    attributes: Mapping[str, str | int]
    events: list[str]
    is_error: bool
    seconds: float


class OtlpReceiver:
    """Listens on a free port; `spans` is what came so far, `raw` the bytes of it.

    Args:
        status: that exports are answered with.
    """

    def __init__(self, *, status: int = 200) -> None:
        self.raw = b""
        self.resources: list[Mapping[str, str | int]] = []
        self._spans: list[ReceivedSpan] = []
        self._arrived = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if status == 200 and self.path == "/v1/traces":
                    receiver._take(body)
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                """Nothing on stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All spans that came, in the order they began."""
        with self._arrived:
            return list(self._spans)

    def _take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._arrived:
            self.raw += body
            found: list[tuple[int, ReceivedSpan]] = []
            for resource in request.resource_spans:
                self.resources.append(_attributes(resource.resource.attributes))
                for scope in resource.scope_spans:
                    found += [(span.start_time_unix_nano, _received(span)) for span in scope.spans]
            self._spans += [span for _, span in sorted(found, key=lambda pair: pair[0])]
            self._arrived.notify_all()


def _received(span: trace_pb2.Span) -> ReceivedSpan:
    return ReceivedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        _attributes(span.attributes),
        [event.name for event in span.events],
        span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
    )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, str | int]:
    return {
        pair.key: pair.value.string_value if pair.value.HasField("string_value") else pair.value.int_value
        for pair in pairs
    }
