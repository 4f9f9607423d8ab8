"""Spans as a collector gets them."""

import subprocess
import sys
import time

import pytest

from kvevents.errors import ConfigError
from kvevents.index import PrefixIndex
from kvevents.routing import Decision, Router
from kvevents.server.telemetry import NO_TRACE, Telemetry, TelemetrySettings
from kvevents.server.usage import Usage
from otlp_receiver import OtlpReceiver

pytestmark = pytest.mark.integration

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
SERVER, CLIENT = 2, 3
PATH = "/v1/chat/completions"


def decision() -> Decision:
    return Router(PrefixIndex(64), ["w0"]).select(list(range(256)))


def traceparent(*, sampled: bool = True) -> tuple[bytes, bytes]:
    return b"traceparent", f"00-{TRACE_ID}-{PARENT_ID}-0{int(sampled)}".encode()


def is_sampled(headers: dict[bytes, bytes]) -> bool:
    return bool(int(headers[b"traceparent"].rpartition(b"-")[2], 16) & 1)


def one_request(telemetry: Telemetry, *headers: tuple[bytes, bytes]) -> dict[bytes, bytes]:
    """A request that goes well; what the worker is sent in place of the client's headers."""
    with telemetry.request(PATH, headers, request_id="r-1") as trace:
        trace.prompt(tokens=256, source="ids", model="m")
        with trace.step("tokenize"):
            pass
        with trace.step("select"):
            chosen = decision()
        attempt = trace.attempt(chosen)
        sent = dict(attempt.headers)
        attempt.first_byte()
        attempt.ended("ok", Usage(256, 192))
        attempt.ended("broken")
        trace.ended(200)
    return sent


def test_a_request_is_a_span_with_its_steps_below_it() -> None:
    with OtlpReceiver() as collector:
        telemetry = Telemetry(TelemetrySettings(otlp_endpoint=collector.url, service_name="router-7"))
        sent = one_request(telemetry, (b"accept", b"*/*"), traceparent())
        telemetry.close()
    request, tokenize, select, upstream = collector.spans
    assert [span.name for span in collector.spans] == [f"POST {PATH}", "tokenize", "select", "upstream"]
    assert {span.trace_id for span in collector.spans} == {TRACE_ID}
    assert request.parent_id == PARENT_ID
    assert {span.parent_id for span in (tokenize, select, upstream)} == {request.span_id}
    assert (request.kind, upstream.kind) == (SERVER, CLIENT)
    assert request.attributes == {
        "http.request.method": "POST",
        "url.path": PATH,
        "kvevents.request_id": "r-1",
        "kvevents.prompt.tokens": 256,
        "kvevents.prompt.source": "ids",
        "gen_ai.request.model": "m",
        "http.response.status_code": 200,
    }
    assert upstream.attributes == {
        "kvevents.worker": "w0",
        "kvevents.dp_rank": 0,
        "kvevents.policy": "kv",
        "kvevents.prompt.tokens": 256,
        "kvevents.cached_tokens.expected": 0,
        "kvevents.cached_tokens.reported": 192,
        "kvevents.outcome": "ok",
    }
    assert upstream.events == ["first byte"]
    assert not any(span.is_error for span in collector.spans)
    assert sent == {b"traceparent": f"00-{TRACE_ID}-{upstream.span_id}-01".encode()}
    assert collector.resources[0]["service.name"] == "router-7"
    assert (telemetry.counters.spans_recorded, telemetry.counters.spans_exported) == (4, 4)


def test_the_vendors_state_goes_on_and_its_parts_are_joined() -> None:
    with OtlpReceiver() as collector:
        telemetry = Telemetry(TelemetrySettings(otlp_endpoint=collector.url))
        sent = one_request(telemetry, traceparent(), (b"tracestate", b"a=1"), (b"tracestate", b"b=2"))
        telemetry.close()
    assert sent[b"tracestate"] == b"a=1,b=2"


@pytest.mark.parametrize("broken", [b"", b"00-xyz", b"\xff\xfe", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"])
def test_a_broken_traceparent_begins_a_new_trace(broken: bytes) -> None:
    with OtlpReceiver() as collector:
        telemetry = Telemetry(TelemetrySettings(otlp_endpoint=collector.url))
        sent = one_request(telemetry, (b"traceparent", broken))
        telemetry.close()
    assert collector.spans[0].parent_id == ""
    assert sent[b"traceparent"].split(b"-")[1].decode() == collector.spans[0].trace_id


def test_failed_attempts_and_requests_are_errors() -> None:
    with OtlpReceiver() as collector:
        telemetry = Telemetry(TelemetrySettings(otlp_endpoint=collector.url))
        with telemetry.request(PATH, [], request_id="r") as trace:
            trace.attempt(decision()).ended("unanswered")
            trace.attempt(decision()).ended("refused")
            trace.ended(502, code="worker_failed")
            trace.ended(200)
        with telemetry.request(PATH, [], request_id="r"):
            pass  # the client left
        telemetry.close()
    failed, first, second, left = collector.spans
    assert [span.is_error for span in (failed, first, second, left)] == [True, True, False, False]
    assert (failed.attributes["http.response.status_code"], failed.attributes["error.type"]) == (502, "worker_failed")
    assert "http.response.status_code" not in left.attributes


def test_sampling_is_the_clients_word_else_the_settings() -> None:
    with OtlpReceiver() as collector:
        telemetry = Telemetry(TelemetrySettings(otlp_endpoint=collector.url, sample_ratio=0.0))
        unsampled = one_request(telemetry)
        declined = one_request(telemetry, traceparent(sampled=False))
        assert collector.spans == []
        one_request(telemetry, traceparent())
        telemetry.close()
    assert {span.trace_id for span in collector.spans} == {TRACE_ID}
    assert len(collector.spans) == 4
    assert not is_sampled(unsampled)
    assert declined[b"traceparent"].startswith(f"00-{TRACE_ID}-".encode())
    assert not is_sampled(declined)
    assert telemetry.counters.spans_recorded == 4


def test_a_collector_that_refuses_is_counted_and_harms_nothing() -> None:
    with OtlpReceiver(status=400) as collector:
        telemetry = Telemetry(TelemetrySettings(otlp_endpoint=collector.url))
        one_request(telemetry)
        telemetry.close()
    assert (telemetry.counters.spans_exported, telemetry.counters.spans_failed) == (0, 4)


def test_ending_waits_for_no_collector_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvevents.server.telemetry.spans.EXPORT_TIMEOUT_S", 0.3)
    with OtlpReceiver() as collector:
        pass  # its port is closed now
    telemetry = Telemetry(TelemetrySettings(otlp_endpoint=collector.url))
    one_request(telemetry)
    began = time.monotonic()
    telemetry.close()
    assert time.monotonic() - began < 3
    assert telemetry.counters.spans_failed == 4


def test_without_an_endpoint_nobody_listens() -> None:
    telemetry = Telemetry(TelemetrySettings())
    assert telemetry.request(PATH, [traceparent()], request_id="r") is NO_TRACE
    telemetry.close()


def test_a_router_without_traces_loads_nothing_of_opentelemetry() -> None:
    code = "import sys, kvevents.server.app; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("missing", ["opentelemetry.sdk.trace", "opentelemetry"])
def test_traces_without_the_extra_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def look(package: str) -> object:
        if package.startswith(f"{missing}."):
            raise ModuleNotFoundError(package)
        return None if package == missing else package

    monkeypatch.setattr("kvevents.server.telemetry.settings.find_spec", look)
    with pytest.raises(ConfigError, match=r"pip install 'kvevents\[otel\]'"):
        TelemetrySettings(otlp_endpoint="http://127.0.0.1:4318")
