"""Log lines of the router."""

import io
import json
import logging
import timeit
from collections.abc import Iterator

import pytest

from kvevents.errors import ConfigError
from kvevents.index import PrefixIndex
from kvevents.routing import Decision, Router
from kvevents.server.telemetry import Telemetry, TelemetrySettings, set_up_logging
from kvevents.server.telemetry.repeats import MAX_REMEMBERED, RepeatFilter
from kvevents.server.usage import Usage

log = logging.getLogger("kvevents.server")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The root logger as pytest has it."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    root.handlers.clear()
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    logging.getLogger("kvevents").setLevel(logging.NOTSET)


def decision() -> Decision:
    return Router(PrefixIndex(64), ["w0"]).select(list(range(256)))


def logged(**settings: object) -> io.StringIO:
    stream = io.StringIO()
    set_up_logging(TelemetrySettings(**settings), stream=stream)  # type: ignore[arg-type]  # a test's few
    return stream


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def failing() -> None:
    raise ValueError("no such thing")


def test_text_is_for_people() -> None:
    stream = logged()
    log.warning("worker %s is down", "w0")
    log.info("not a line")
    log.warning("of a request", extra={"request_id": "r-1"})
    assert stream.getvalue() == "kvevents: worker w0 is down\nkvevents: of a request (request r-1)\n"


def test_json_is_one_object_a_line_whatever_is_in_it() -> None:
    stream = logged(log_format="json", log_level="info")
    log.info('two\nlines and a "quote" and \x00', extra={"request_id": "r-1"})
    try:
        failing()
    except ValueError:
        log.exception("it failed")
    first, second = lines(stream)
    assert first["message"] == 'two\nlines and a "quote" and \x00'
    assert (first["level"], first["logger"], first["request_id"]) == ("info", "kvevents.server", "r-1")
    assert str(first["ts"]).endswith("Z")
    assert "ValueError: no such thing" in str(second["exception"])


def test_a_request_is_a_line_of_facts() -> None:
    stream = logged(log_format="json", log_level="info")
    telemetry = Telemetry(TelemetrySettings(access_log="info"))
    with telemetry.request("/v1/completions", [], request_id="r-1") as trace:
        trace.prompt(tokens=256, source="ids", model="m")
        trace.attempt(decision()).ended("unanswered")
        with trace.step("select"):
            attempt = trace.attempt(decision())
        attempt.first_byte()
        attempt.ended("ok", Usage(256, 192))
        trace.ended(200)
    (line,) = lines(stream)
    first_byte, duration = line.pop("first_byte_ms"), line.pop("duration_ms")
    assert 0 < float(str(first_byte)) <= float(str(duration))
    del line["ts"], line["message"]
    assert line == {
        "level": "info",
        "logger": "kvevents.access",
        "request_id": "r-1",
        "path": "/v1/completions",
        "status": 200,
        "code": None,
        "prompt_tokens": 256,
        "prompt_source": "ids",
        "model": "m",
        "attempts": 2,
        "worker": "w0",
        "dp_rank": 0,
        "policy": "kv",
        "expected_cached_tokens": 0,
        "outcome": "ok",
        "reported_cached_tokens": 192,
    }


@pytest.mark.parametrize(
    ("level", "access", "written"), [("info", "info", 1), ("info", "debug", 0), ("debug", "off", 0)]
)
def test_requests_are_lines_at_the_level_that_was_asked_for(level: str, access: str, written: int) -> None:
    stream = logged(log_level=level)
    telemetry = Telemetry(TelemetrySettings(access_log=access))  # type: ignore[arg-type]  # a parameter
    with telemetry.request("/v1/completions", [], request_id="r-1"):
        pass
    assert stream.getvalue().count("request path=/v1/completions") == written


def test_what_a_client_sends_makes_no_line_of_its_own() -> None:
    stream = logged(log_level="info")
    with Telemetry(TelemetrySettings(access_log="info")).request("/v1/completions", [], request_id="r") as trace:
        trace.prompt(tokens=1, source="text", model="m\nkvevents: worker w0 is down")
    assert len(stream.getvalue().splitlines()) == 1


def test_the_same_warning_is_a_line_once_in_a_while() -> None:
    now = 0.0
    repeats = RepeatFilter(60, clock=lambda: now)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(repeats)
    logging.basicConfig(level="INFO", format="%(message)s", handlers=[handler], force=True)
    for moment in (0.0, 1.0, 59.0):
        now = moment
        log.warning("worker %s is down", "w0")
        log.warning("worker %s is down", "w1")
        log.error("worker %s is down", "w0")
    now = 61.0
    log.warning("worker %s is down", "w0")
    assert stream.getvalue().splitlines() == [
        *("worker w0 is down", "worker w1 is down", "worker w0 is down"),
        "worker w0 is down (2 more like it in the last 61 s)",
    ]
    assert repeats.left_out == 6


def test_remembered_lines_are_bounded_and_requests_never_left_out() -> None:
    repeats = RepeatFilter(60, clock=lambda: 0.0)

    def is_written(message: str, **extra: object) -> bool:
        record = log.makeRecord("kvevents", logging.WARNING, "f", 1, message, (), None, extra=extra)
        return repeats.filter(record)

    assert all(is_written(str(number)) for number in range(3 * MAX_REMEMBERED))
    assert len(repeats._said) == MAX_REMEMBERED
    assert not is_written(str(3 * MAX_REMEMBERED - 1))
    assert is_written("0")
    assert all(is_written("request", facts={}) for _ in range(3))


def test_other_packages_are_lines_from_warnings_on() -> None:
    stream = logged(log_level="debug")
    logging.getLogger("urllib3").debug("POST /?key=secret")
    logging.getLogger("urllib3").warning("slow")
    log.debug("ours")
    assert stream.getvalue() == "kvevents: slow\nkvevents: ours\n"


def test_no_time_lets_all_through() -> None:
    stream = logged(log_repeat_s=0.0)
    for _ in range(3):
        log.warning("again")
    assert stream.getvalue().count("again") == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"sample_ratio": 1.5},
        {"sample_ratio": float("nan")},
        {"log_repeat_s": -1.0},
        {"service_name": ""},
        {"otlp_endpoint": "collector:4318"},
        {"otlp_endpoint": "ftp://collector"},
        {"otlp_endpoint": "http://collector:99999"},
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))}: expected "):
        TelemetrySettings(**wrong)  # type: ignore[arg-type]  # wrong ones


def test_a_password_in_an_endpoint_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        TelemetrySettings(otlp_endpoint="http://me:secret@collector:4318")
    assert "secret" not in str(caught.value)


def test_nobody_listening_costs_less_than_a_microsecond_a_call() -> None:
    telemetry = Telemetry(TelemetrySettings())
    headers: list[tuple[bytes, bytes]] = [(b"traceparent", b"00-0-0-00")] * 20
    assert min(timeit.repeat(lambda: telemetry.request("/v1/completions", headers, request_id="r"), number=2000)) < 2e-3
    trace, chosen = telemetry.request("/v1/completions", headers, request_id="r"), decision()

    def told() -> None:
        trace.step("select").end()
        trace.attempt(chosen).first_byte()
        trace.ended(200)

    assert min(timeit.repeat(told, number=2000)) < 5 * 2e-3
