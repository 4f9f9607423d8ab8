"""`discover` against small HTTP servers that answer well, badly, slowly or not at all."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kvevents.errors import ConfigError, KVEventsError, TransportError
from kvevents.index import GroupSpec
from kvevents.transport import discover

pytestmark = pytest.mark.integration

Answer = Callable[[BaseHTTPRequestHandler], None]
EVENTS = {
    "publisher": "zmq",
    "endpoint_host": "*",
    "endpoint_port_base": 5557,
    "topic": "kv",
    "block_size": 16,
    "dp_size": 2,
    "replay_endpoint_port_base": 6557,
    "load_topic": "load",
}


@contextlib.contextmanager
def worker(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class names it so)
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def answering(body: Any, status: int = 200, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        with contextlib.suppress(OSError):  # the client may have had enough
            handler.wfile.write(data)

    return answer


def nonsense(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"nonsense\r\n\r\n")


def silence(handler: BaseHTTPRequestHandler) -> None:
    """Closes the connection without a word."""


def test_each_rank_is_a_source_at_the_workers_host() -> None:
    with worker(answering({"kv_events": EVENTS, "version": "0.5.23"})) as url:
        sources = discover(url)
    assert [(s.worker_id, s.dp_rank, s.endpoint, s.replay_endpoint) for s in sources] == [
        (url.removeprefix("http://"), 0, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:6557"),
        (url.removeprefix("http://"), 1, "tcp://127.0.0.1:5558", "tcp://127.0.0.1:6558"),
    ]
    assert {(s.topic, s.block_size, s.bind) for s in sources} == {("kv", 16, None)}


def test_a_concrete_host_is_kept_and_the_worker_id_can_be_given() -> None:
    events = EVENTS | {"endpoint_host": "10.0.0.7", "dp_size": 1, "replay_endpoint_port_base": None}
    with worker(answering({"kv_events": events})) as url:
        (source,) = discover(f"{url}/", worker_id="a", bind=True, residency="set")
    assert source.endpoint == "tcp://10.0.0.7:5557"
    assert (source.worker_id, source.replay_endpoint, source.bind, source.residency) == ("a", None, True, "set")


def test_the_groups_of_a_hybrid_model_come_along() -> None:
    groups = [{"kind": "full_attention", "window": None}, {"kind": "sliding_window", "window": 129}]
    with worker(answering({"kv_events": EVENTS | {"groups": groups}})) as url:
        assert {source.groups for source in discover(url)} == {
            (GroupSpec("full_attention"), GroupSpec("sliding_window", 129))
        }
    with worker(answering({"kv_events": EVENTS})) as url:
        assert {source.groups for source in discover(url)} == {()}


def test_an_engine_that_publishes_over_ipc_names_its_paths() -> None:
    events = {"publisher": "zmq", "endpoint": "ipc:///run/kv", "replay_endpoint": "ipc:///run/kv-replay", "dp_size": 2}
    with worker(answering({"kv_events": events})) as url:
        sources = discover(url)
    assert [(s.endpoint, s.replay_endpoint) for s in sources] == [
        ("ipc:///run/kv", "ipc:///run/kv-replay"),
        ("ipc:///run/kv_dp1", "ipc:///run/kv-replay_dp1"),
    ]


def test_the_key_goes_as_bearer_token() -> None:
    seen: list[str | None] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers["Authorization"])
        answering({"kv_events": EVENTS})(handler)

    with worker(answer) as url:
        discover(url, api_key="secret")
        discover(url)
    assert seen == ["Bearer secret", None]


@pytest.mark.parametrize("info", [{}, {"kv_events": None}, {"kv_events": {"publisher": None}}, {"kv_events": {}}])
def test_an_engine_with_events_off_is_told_how_to_switch_them_on(info: dict[str, Any]) -> None:
    with worker(answering(info)) as url, pytest.raises(ConfigError, match="--kv-events-config"):
        discover(url)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (answering(b"<html>"), "JSON"),
        (answering(b"\xff\xfe"), "JSON"),
        (answering(b'{"deep": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"), "recursion"),
        (answering([1]), "object"),
        (answering({"kv_events": EVENTS | {"endpoint_port_base": 0}}), "endpoint_port_base"),
        (answering({"kv_events": EVENTS | {"endpoint_port_base": None}}), "endpoint_port_base"),
        (answering({"kv_events": EVENTS | {"dp_size": 10**9}}), "dp_size"),
        (answering({"kv_events": EVENTS | {"publisher": "nats"}}), "nats"),
        (answering(b" " * (2 << 20)), "at most"),
        (answering({}, 404), "404"),
        (answering({}, 401), "API key"),
        (answering({}, 302, Location="http://127.0.0.1:1/server_info"), "redirects"),
        (nonsense, "no answer"),
        (silence, "no answer"),
    ],
)
def test_nonsense_is_refused_with_the_url_and_what_came(answer: Answer, says: str) -> None:
    with worker(answer) as url, pytest.raises(TransportError, match=says) as caught:
        discover(url)
    assert f"{url}/server_info" in str(caught.value)


def test_ranks_above_the_last_port_are_refused() -> None:
    with worker(answering({"kv_events": EVENTS | {"endpoint_port_base": 65535}})) as url, pytest.raises(KVEventsError):
        discover(url)


def test_an_answer_that_trickles_in_is_cut_off() -> None:
    done = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with contextlib.suppress(OSError):
            while not done.wait(0.02):
                handler.wfile.write(b" ")
                handler.wfile.flush()

    with worker(trickle) as url, contextlib.ExitStack() as stack:
        stack.callback(done.set)
        with pytest.raises(TransportError, match=r"within 0\.3 s"):
            discover(url, timeout_s=0.3)


def test_an_engine_that_is_not_there_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(TransportError, match="no answer") as caught:
        discover(url)
    assert url in str(caught.value)


@pytest.mark.parametrize("url", ["", "127.0.0.1:30000", "ftp://host", "http://", "http://host:port", "tcp://host:5557"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="worker URL"):
        discover(url)
