"""Keys through the commands and the plugins: an engine, a relay beside it, and who reads them."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from zmq.auth import load_certificate

from engine_process import running_engine
from kvevents.events import AllBlocksCleared, KVEventBatch
from kvevents.integrations.outlet import Outlet
from kvevents.integrations.settings import PluginSettings, misspelt
from kvevents.transport import ConsumerKeys, Reason, Source, Subscriber, discover, make_keys
from kvevents.transport.security import MadeKeys
from kvevents.wire import encode_batch
from recording_sink import RecordingSink
from relay_process import running_relay
from zmq_peers import until

pytestmark = pytest.mark.integration


@pytest.fixture
def made(tmp_path: Path) -> MadeKeys:
    return make_keys(tmp_path / "keys", ("relay", "router"))


def tail(url: str, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "kvevents", "tail", url, "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout


def test_an_engine_a_relay_and_a_reader_with_keys(made: MadeKeys) -> None:
    config = {"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*", "keys": str(made.publisher)}
    with running_engine("--kv-events-config", json.dumps(config)) as engine:
        assert "keys" not in engine.kv_events
        options = ("--source-keys", str(made.clients["relay"]), "--keys", str(made.publisher))
        with running_relay(engine.url, *options) as relay:
            for url in (engine.url, relay.url):
                sink = RecordingSink()
                keys = ConsumerKeys(made.clients["router"])
                with Subscriber(discover(url, worker_id="w", keys=keys), sink) as subscriber:
                    assert subscriber.wait_live(20)
                with Subscriber(discover(url, worker_id="w"), sink) as subscriber:
                    until(lambda: subscriber.state("w").code is Reason.HANDSHAKE_FAILED)
            said = "\n".join(relay.notes)
        for private in (made.publisher, *made.clients.values()):
            for key in load_certificate(private):
                assert key is not None
                assert key.decode() not in said + json.dumps(relay.ready) + json.dumps(engine.kv_events)


def test_tail_reads_with_keys(made: MadeKeys) -> None:
    settings = PluginSettings.from_environment({"KVEVENTS_KEYS_FILE": str(made.publisher)})
    assert misspelt({"KVEVENTS_KEYS_FILE": "x"}) == []
    outlet = Outlet(
        "sglang", settings, rank=0, endpoint="tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*", bind=True
    )
    try:
        assert outlet.zmq is not None
        outlet.publish(encode_batch(KVEventBatch(1.0, [AllBlocksCleared()], 0)))
        repeats = ("--replay", outlet.zmq.replay_endpoint or "")
        code, told = tail(outlet.zmq.endpoint, *repeats, "--keys", str(made.clients["router"]), "--limit", "1")
        assert code == 0
        assert "AllBlocksCleared" in told
        sink = RecordingSink()
        with Subscriber([Source("w", outlet.zmq.endpoint)], sink) as subscriber:
            until(lambda: subscriber.state("w").code is Reason.HANDSHAKE_FAILED)
        assert sink.applied == []
    finally:
        outlet.close()


@pytest.mark.parametrize("has_keys", [True, False])
def test_the_router_reads_with_keys_and_says_why_it_cannot_without(made: MadeKeys, has_keys: bool) -> None:
    config = {"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*", "keys": str(made.publisher)}
    with running_engine("--kv-events-config", json.dumps(config)) as engine:
        options = ("--keys", str(made.clients["router"])) if has_keys else ()
        command = [sys.executable, "-m", "kvevents", "serve", "--port", "0", "--worker", engine.url, *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as router:
            try:
                assert router.stdout is not None
                url = json.loads(router.stdout.readline())["url"]
                said = '"live"' if has_keys else "wants keys"
                until(lambda: said in httpx.get(f"{url}/workers").text, said)
            finally:
                router.terminate()
                router.communicate()
