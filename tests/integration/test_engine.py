"""The engine as a process: options, signals, ports, time, and clients that hang up."""

import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import zmq

from engine_process import DEADLINE_S, EngineProcess, run_to_end, running_engine, wait_until
from kvevents.transport import discover

pytestmark = pytest.mark.integration

EVENTS = '{"endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0"}'


def complete(engine: EngineProcess, **body: Any) -> httpx.Response:
    return httpx.post(f"{engine.url}/v1/completions", json={"prompt": [1, 2, 3], **body}, timeout=DEADLINE_S)


def running_requests(engine: EngineProcess) -> float:
    lines = httpx.get(f"{engine.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("kvevents_engine_running_requests{"))


def listens(engine: EngineProcess) -> bool:
    address = httpx.URL(engine.url)
    with socket.socket() as client:
        return client.connect_ex((address.host, address.port or 0)) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(number: signal.Signals) -> None:
    with running_engine("--kv-events-config", EVENTS, "--dp-size", "2") as engine:
        assert complete(engine, max_tokens=1).status_code == 200
        assert engine.stop(number) == (0, "", "")
        port = httpx.URL(engine.url).port
        assert port
        for taken in (port, *(engine.kv_events["endpoint_port_base"] + rank for rank in range(2))):
            socket.create_server(("127.0.0.1", taken)).close()


def test_a_second_signal_ends_it_at_once() -> None:
    with running_engine() as engine, httpx.Client(timeout=DEADLINE_S) as client:
        body = {"prompt": [2], "max_tokens": 100_000, "stream": True}
        with client.stream("POST", f"{engine.url}/v1/completions", json=body) as endless:
            assert next(endless.iter_raw()).startswith(b"data: ")
            engine.process.send_signal(signal.SIGTERM)
            for _ in wait_until():
                if not listens(engine):
                    break
            assert engine.stop() == (0, "", "")


def test_what_runs_may_end_but_not_for_long() -> None:
    with running_engine("--decode-step-ms", "20") as engine, httpx.Client(timeout=DEADLINE_S) as client:
        url = f"{engine.url}/v1/completions"
        short = {"prompt": [1], "max_tokens": 25, "stream": True}
        endless = {"prompt": [2], "max_tokens": 10_000, "stream": True}
        with client.stream("POST", url, json=short) as first, client.stream("POST", url, json=endless) as second:
            streams = [first.iter_raw(), second.iter_raw()]
            assert all(next(stream).startswith(b"data: ") for stream in streams)
            start = time.monotonic()
            engine.process.send_signal(signal.SIGTERM)
            assert b"".join(streams[0]).endswith(b"data: [DONE]\n\n")
            with pytest.raises(httpx.HTTPError):
                b"".join(streams[1])
        assert engine.process.wait(DEADLINE_S) == 0
        assert time.monotonic() - start < 10


def test_a_port_in_use_is_one_line_and_exit_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = run_to_end("--port", str(port))
        assert (code, out) == (3, "")
        assert err == f"kvevents: http://127.0.0.1:{port}: cannot listen there: Address already in use\n"
        for key in ("endpoint", "replay_endpoint"):
            config = {"endpoint": "tcp://127.0.0.1:0"} | {key: f"tcp://127.0.0.1:{port}"}
            code, out, err = run_to_end("--kv-events-config", json.dumps(config))
            assert (code, out, err.count("\n")) == (3, "", 1)
            assert f"127.0.0.1:{port}" in err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--kv-events-config", '{"endpoints": "x"}'], "unknown key endpoints; known are publisher, endpoint,"),
        (["--kv-events-config", '{"endpoint": "localhost"}'], "endpoint 'localhost': expected tcp://host:port"),
        (["--kv-events-config", "{"], "expected a JSON object"),
        (["--kv-events-config", '{"endpoint": "tcp://127.0.0.1:0", "bind": false}'], "expected the port to connect to"),
        (["--page-size", "0"], "page_size: expected 1 or more, got 0"),
        (["--eviction-policy", "newest"], "newest"),
        (["--prefill-tokens-per-second", "-1"], "expected a number above 0, got -1.0"),
        (["--speeed", "2"], "--speeed"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(options: list[str], says: str) -> None:
    code, out, err = run_to_end(*options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_help_has_an_example() -> None:
    code, out, _ = run_to_end("--help")
    assert code == 0
    assert "Example:" in out


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [("tcp://*:*", "*"), ("tcp://0.0.0.0:0", "0.0.0.0"), ("tcp://localhost:0", "localhost"), ("tcp://[::1]:0", "::1")],
)
def test_endpoints_of_every_kind_find_free_ports_for_all_ranks(endpoint: str, host: str) -> None:
    config = json.dumps({"endpoint": endpoint, "replay_endpoint": endpoint, "topic": "t"})
    with running_engine("--kv-events-config", config, "--dp-size", "3") as engine:
        events = engine.kv_events
        assert events["endpoint_host"] == host
        base, replay = events["endpoint_port_base"], events["replay_endpoint_port_base"]
        assert abs(base - replay) >= 3
        sources = discover(engine.url)
        assert [source.dp_rank for source in sources] == [0, 1, 2]
        assert [source.endpoint.rpartition(":")[2] for source in sources] == [str(base + rank) for rank in range(3)]


def test_ipc_sockets_of_ranks_have_a_suffix(tmp_path: Path) -> None:
    config = {"endpoint": f"ipc://{tmp_path}/live", "replay_endpoint": f"ipc://{tmp_path}/replay"}
    with running_engine("--kv-events-config", json.dumps(config), "--dp-size", "2") as engine:
        said = {"publisher": "zmq", "topic": "", "block_size": 64, "dp_size": 2, "snapshot": True}
        assert engine.kv_events == config | said
        with zmq.Context() as context:
            for name in ("replay", "replay_dp1"):
                with context.socket(zmq.DEALER) as dealer:
                    dealer.connect(f"ipc://{tmp_path}/{name}")
                    dealer.send_multipart([b"", bytes(8)])
                    assert dealer.poll(10_000), "no reply"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["live", "live_dp1", "replay", "replay_dp1"]


def test_a_publisher_can_connect_to_a_consumer_that_binds() -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.subscribe("")
        port = sub.bind_to_random_port("tcp://127.0.0.1")
        config = json.dumps({"endpoint": f"tcp://127.0.0.1:{port}", "bind": False})
        with running_engine("--kv-events-config", config) as engine:
            for _ in wait_until():
                httpx.post(f"{engine.url}/flush_cache")
                if sub.poll(50):
                    break


def test_a_null_publisher_is_none() -> None:
    with running_engine("--kv-events-config", '{"publisher": "null"}') as engine:
        assert not engine.kv_events
        assert httpx.get(f"{engine.url}/server_info").json()["kv_events"] is None


def test_time_runs_at_its_speed() -> None:
    options = ["--speed", "10", "--prefill-tokens-per-second", "20000", "--decode-step-ms", "10"]
    with running_engine(*options, "--decode-step-per-request-ms", "0") as engine:
        complete(engine, max_tokens=1)
        start = time.monotonic()
        body = {"prompt": list(range(16_000)), "max_tokens": 201, "stream": True}
        with httpx.stream("POST", f"{engine.url}/v1/completions", json=body, timeout=DEADLINE_S) as response:
            chunks = response.iter_raw()
            next(chunks)
            first = time.monotonic() - start
            for _ in chunks:
                pass
        whole = time.monotonic() - start
        # 0.8 s of prefill and 2.0 s of decoding, divided by 10. Early is a fault; late may be the machine.
        assert 0.079 <= first < 0.6
        assert 0.279 <= whole < 1.2


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_its_memory(stream: bool) -> None:
    with running_engine("--max-total-tokens", "2000") as engine:
        body = {"prompt": list(range(1000)), "max_tokens": 900, "stream": stream}
        request = json.dumps(body).encode()
        url = httpx.URL(engine.url)
        with socket.create_connection((url.host, url.port)) as client:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(request)}\r\n\r\n"
            client.sendall(head.encode() + request)
            for _ in wait_until():
                if running_requests(engine):
                    break
        for _ in wait_until():
            if not running_requests(engine):
                break
        # There is room for a request that needs all of it, and a flush finds nothing running.
        assert complete(engine, prompt=list(range(5000, 6980)), max_tokens=2).status_code == 200
        assert httpx.post(f"{engine.url}/flush_cache").status_code == 200


def test_a_body_over_the_limit_is_refused() -> None:
    with running_engine() as engine:
        response = httpx.post(f"{engine.url}/v1/completions", content=b" " * (33 << 20), timeout=DEADLINE_S)
        assert response.status_code == 413
        assert complete(engine, max_tokens=1).status_code == 200
