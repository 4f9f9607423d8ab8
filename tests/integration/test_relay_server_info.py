"""What a relay tells over HTTP: the engine's answer with the relay's sockets, and nothing else of the relay's."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from kvevents.errors import ConfigError, TransportError
from kvevents.transport import Relay, Source, discover
from kvevents.transport.relay import ServerInfo

pytestmark = pytest.mark.integration
ANY = "tcp://127.0.0.1:*"
TOLD: dict[str, Any] = {
    "model_path": "m",
    "kv_events": {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": 1,
        "replay_endpoint_port_base": 2,
        "topic": "kv",
        "block_size": 16,
        "dp_size": 2,
        "load_endpoint_port_base": 3,
        "load_topic": "load",
    },
}


class Engine(BaseHTTPRequestHandler):
    answer = json.dumps(TOLD).encode()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Engine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def relay() -> Iterator[Relay]:
    # Nobody publishes there: what is told does not depend on it.
    sources = [Source("a:1", "tcp://127.0.0.1:9", dp_rank=rank, topic="kv", block_size=16) for rank in (0, 1)]
    with Relay([*sources, Source("b", "tcp://127.0.0.1:9")], ANY, replay_listen=ANY) as relay:
        yield relay


def get(url: str, path: str = "") -> tuple[int, Any]:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
    try:
        connection.request("GET", where.path + path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_the_engines_answer_has_the_relays_sockets_in_it(relay: Relay, engine: HTTPServer) -> None:
    with ServerInfo(relay, {"a:1": f"http://127.0.0.1:{engine.server_port}"}) as info:
        status, told = get(info.url_of("a:1"), "/server_info")
        ours = relay.describe("a:1")
        assert status == 200
        assert told == TOLD | {"kv_events": TOLD["kv_events"] | ours}
        assert ours["dp_size"] == 2
        assert told["kv_events"]["load_endpoint_port_base"] == 3, "on the same host"
        found = discover(info.url_of("a:1"), worker_id="a:1")
        assert found == relay.sources("a:1")
        # A worker that was given by its socket, and one that nobody knows.
        assert get(info.url_of("b"), "/server_info") == (
            200,
            {"kv_events": {name: value for name, value in relay.describe("b").items() if value is not None}},
        )
        assert get(info.url, "/server_info")[0] == 404, "there are two workers"
        assert get(info.url, "/health") == (200, {"status": "ok"})
        assert [stream["worker_id"] for stream in get(info.url, "/stats")[1]["streams"]] == ["a:1", "a:1", "b"]


def test_while_an_engine_is_away_its_last_answer_counts(relay: Relay, engine: HTTPServer) -> None:
    with ServerInfo(relay, {"a:1": f"http://127.0.0.1:{engine.server_port}"}) as info:
        first = get(info.url_of("a:1"), "/server_info")
        engine.RequestHandlerClass.answer = b"no JSON"  # type: ignore[attr-defined]
        try:
            assert get(info.url_of("a:1"), "/server_info") == first
        finally:
            engine.RequestHandlerClass.answer = json.dumps(TOLD).encode()  # type: ignore[attr-defined]


def test_an_address_in_use_and_one_that_is_none(relay: Relay) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(TransportError, match="cannot listen on"):
        ServerInfo(relay, {}, listen=f"127.0.0.1:{taken.getsockname()[1]}")
    for listen in ("127.0.0.1", "x:y", ":80", "h:70000"):
        with pytest.raises(ConfigError, match="expected host:port"):
            ServerInfo(relay, {}, listen=listen)


def test_who_sends_byte_by_byte_keeps_nobody_out(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvevents.transport.http_listener._IDLE_S", 0.2)
    with ServerInfo(relay, {}) as info:
        address = ("127.0.0.1", urlsplit(info.url).port)
        held = [socket.create_connection(address) for _ in range(64)]
        end = time.monotonic() + 10
        try:
            while True:
                for connection in held:
                    with contextlib.suppress(OSError):
                        connection.send(b"G")
                try:
                    assert get(info.url, "/health")[0] == 200
                    break
                except (OSError, http.client.HTTPException):
                    assert time.monotonic() < end
                time.sleep(0.02)
        finally:
            for connection in held:
                connection.close()


def test_too_many_connections_are_closed_and_others_go_on(relay: Relay) -> None:
    with ServerInfo(relay, {}) as info:
        address = ("127.0.0.1", urlsplit(info.url).port)
        held = [socket.create_connection(address) for _ in range(64)]
        try:
            one_more = socket.create_connection(address)
            one_more.settimeout(10)
            assert one_more.recv(1) == b"", "closed"
            one_more.close()
        finally:
            for connection in held:
                connection.close()
        deadline = 100
        while True:  # the others' threads end
            try:
                assert get(info.url, "/health")[0] == 200
                break
            except (OSError, http.client.HTTPException):
                deadline -= 1
                assert deadline
