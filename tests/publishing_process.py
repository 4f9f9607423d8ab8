"""A cache that publishes, in a process of its own: for tests that kill it, stop it, and ask what it holds.

As a script: `publishing_process.py ENDPOINT REPLAY_ENDPOINT SEED BUFFER_STEPS`. It says where it listens, then answers
each line it is sent: `work N` inserts and evicts N times, `reset` empties the cache, `holdings` tells the truth.
"""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import msgspec

from kvevents.caches import RadixCache
from kvevents.transport import ZmqPublisher

PAGE = 4


class PublishingProcess:
    """The process, seen from the test.

    Args:
        endpoint: where it publishes.
        replay_endpoint: where it repeats.
        seed: of what it caches.
        buffer_steps: batches that it can repeat.

    Attributes:
        endpoint: the address in use.
        replay_endpoint: the same of the replay socket.
    """

    def __init__(
        self,
        endpoint: str = "tcp://127.0.0.1:*",
        replay_endpoint: str = "tcp://127.0.0.1:*",
        *,
        seed: int = 0,
        buffer_steps: int = 10_000,
    ) -> None:
        arguments = [endpoint, replay_endpoint, str(seed), str(buffer_steps)]
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        ready = self._answer()
        self.endpoint: str = ready["endpoint"]
        self.replay_endpoint: str = ready["replay_endpoint"]

    def work(self, times: int) -> None:
        """Let it cache and evict, a batch each time, and wait until all of it is handed to the publisher."""
        self._ask(f"work {times}")

    def reset(self) -> None:
        """Let it drop everything."""
        self._ask("reset")

    def holdings(self) -> set[int]:
        """What it holds now."""
        return set(self._ask("holdings")["gpu"])

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _ask(self, command: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return msgspec.json.decode(self.process.stdout.readline())


def main(endpoint: str, replay_endpoint: str, seed: str, buffer_steps: str) -> None:
    dice = random.Random(int(seed))
    cache = RadixCache(page_size=PAGE, capacity=PAGE * 200)
    with ZmqPublisher(
        endpoint, replay_endpoint=replay_endpoint, topic="kv", buffer_steps=int(buffer_steps), bind=True
    ) as publisher:

        def publish() -> None:
            batch = cache.take_batch()
            if batch is not None:
                publisher.publish(batch)

        def say(**facts: Any) -> None:
            sys.stdout.write(f"{msgspec.json.encode(facts).decode()}\n")
            sys.stdout.flush()

        publish()
        say(endpoint=publisher.endpoint, replay_endpoint=publisher.replay_endpoint)
        for line in sys.stdin:
            command, *rest = line.split()
            if command == "work":
                for _ in range(int(rest[0])):
                    pages = [
                        (dice.randrange(20), depth, dice.randrange(2), 7) for depth in range(dice.randrange(1, 12))
                    ]
                    cache.insert([token for page in pages for token in page])
                    if dice.random() < 0.2:
                        cache.evict(dice.randrange(PAGE * 10))
                    publish()
            elif command == "reset":
                cache.reset()
                publish()
            say(gpu=[block for block, _ in cache.holdings()])


if __name__ == "__main__":
    main(*sys.argv[1:])
