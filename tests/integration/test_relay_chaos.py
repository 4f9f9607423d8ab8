"""Engine and relay are killed and stopped at random: the consumer's index becomes right again, and says so only then.

`RELAY_ROUNDS` rounds, by default 3; `make soak` runs 200.
"""

import os
import random
import signal
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kvevents.index import PrefixIndex
from kvevents.transport import DeliverySettings, Source, State, Subscriber
from publishing_process import PAGE, PublishingProcess
from relay_process import RelayProcess, running_relay

pytestmark = pytest.mark.integration
ROUNDS = int(os.environ.get("RELAY_ROUNDS", "3"))
QUICK = DeliverySettings(replay_timeout_s=2.0, idle_probe_s=0.2, settle_s=0.02, heartbeat_s=0.3, retry_max_s=1.0)
BOUND_S = 2.0
"""How long a source may say `live` after its picture has become wrong."""
DEADLINE_S = 40.0


class World:
    """An engine, a relay beside it, and a consumer that reads the relay only."""

    def __init__(self, seed: int, log: Path) -> None:
        self.dice = random.Random(seed)
        self.log = log
        self.engine = PublishingProcess(seed=seed)
        self.lives = 1
        self._context = self._start_relay()
        self.relay: RelayProcess = self._context.__enter__()
        events = self.relay.kv_events
        self.source = Source(
            "w",
            f"tcp://127.0.0.1:{events['endpoint_port_base']}",
            replay_endpoint=f"tcp://127.0.0.1:{events['replay_endpoint_port_base']}",
            topic="kv",
            snapshot=True,
        )
        self.index = PrefixIndex(PAGE)

    def _start_relay(self) -> AbstractContextManager[RelayProcess]:
        small = ["--replay-mib", "0.02"] if self.dice.random() < 0.5 else []
        window = self.dice.choice(["0ms", "5ms", "50ms"])
        level = self.dice.choice(["chain", "compact"])
        sockets = [self.engine.endpoint, "--source-replay", self.engine.replay_endpoint, "--source-topic", "kv"]
        return running_relay(*sockets, "--log", self.log, "--window", window, "--coalesce", level, *small)

    def restart_relay(self) -> None:
        self.relay.end(signal.SIGKILL)
        self._context.__exit__(None, None, None)
        if self.dice.random() < 0.5:
            self.engine.work(self.dice.randrange(30))
        self._context = self._start_relay()
        self.relay = self._context.__enter__()

    def restart_engine(self) -> None:
        self.engine.kill()
        self.lives += 1
        self.engine = PublishingProcess(
            self.engine.endpoint, self.engine.replay_endpoint, seed=1_000 * self.lives + self.dice.randrange(1_000)
        )

    def pause(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.dice.random() * 2)
        os.kill(pid, signal.SIGCONT)

    def disturb(self) -> str:
        name, act = self.dice.choice(
            [
                ("relay killed", self.restart_relay),
                ("engine killed", self.restart_engine),
                ("relay stopped", lambda: self.pause(self.relay.process.pid)),
                ("engine stopped", lambda: self.pause(self.engine.process.pid)),
                ("engine emptied", self.engine.reset),
            ]
        )
        act()
        return name

    def held(self) -> set[int]:
        return self.index.holdings("w").get(0, {}).get("GPU", set())

    def close(self) -> None:
        self._context.__exit__(None, None, None)
        self.engine.kill()


@pytest.mark.parametrize("seed", range(max(1, ROUNDS // 5)))
def test_the_consumer_is_right_again_and_says_so_only_then(seed: int, tmp_path: Path) -> None:
    world = World(seed, tmp_path)
    try:
        with Subscriber([world.source], world.index, settings=QUICK) as subscriber:
            history: list[str] = []
            for _ in range(min(ROUNDS, 5)):
                world.engine.work(world.dice.randrange(1, 60))
                history.append(world.disturb())
                world.engine.work(world.dice.randrange(1, 60))
                truth = world.engine.holdings()
                settled = time.monotonic() + BOUND_S
                deadline = time.monotonic() + DEADLINE_S
                while not (subscriber.state("w").state is State.LIVE and world.held() == truth):
                    is_live = subscriber.state("w").state is State.LIVE
                    wrong = world.held() != truth and subscriber.state("w").state is State.LIVE
                    assert not (is_live and wrong and time.monotonic() > settled), f"live and wrong: {history}"
                    assert time.monotonic() < deadline, f"not right again: {history}, {subscriber.state('w')}"
                    time.sleep(0.02)
            world.index.check_integrity()
    finally:
        world.close()
