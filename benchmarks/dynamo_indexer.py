"""Dynamo's standalone indexer, `python -m dynamo.indexer`: it follows ZMQ sockets and answers over HTTP."""

import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.dynamo import install_indexer
from benchmarks.peers import ENVIRONMENT, Unavailable
from benchmarks.process import processor_seconds

MODEL = "model"
_START_S = 60.0
_PATIENCE_S = 300.0


class DynamoIndexer:
    """Workers are numbered from 0 here and from 1 there. Listens on all interfaces: see `benchmarks.loopback`.

    Args:
        block_size: of the workers, in tokens.
        threads: of the indexer.

    Raises:
        Unavailable: Dynamo cannot be had here.
    """

    def __init__(self, block_size: int, *, threads: int = 4) -> None:
        install_indexer()
        self._block_size = block_size
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        python = str(ENVIRONMENT / "bin" / "python")
        self._process = subprocess.Popen(
            [python, "-m", "dynamo.indexer", "--port", str(self.port), "--threads", str(threads)],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "DYN_LOG": "warn"},
        )
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        self._wait_until_healthy()

    def follow(self, endpoints: Sequence[str]) -> None:
        """Begin to follow these workers."""
        for worker, endpoint in enumerate(endpoints):
            self.request(
                "/register",
                {
                    "instance_id": worker + 1,
                    "endpoint": endpoint,
                    "model_name": MODEL,
                    "block_size": self._block_size,
                },
            )

    def depths(self, tokens: Sequence[int]) -> dict[int, int]:
        """Leading blocks of a prompt by worker, of those that have any."""
        return self._depths("/query", {"token_ids": list(tokens)})

    def depths_by_hash(self, hashes: Sequence[int]) -> dict[int, int]:
        """The same, for the hashes that Dynamo makes of a prompt's blocks."""
        return self._depths("/query_by_hash", {"block_hashes": list(hashes)})

    def blocks(self) -> dict[int, set[int]]:
        """All blocks that the indexer has, by worker: the engine's hashes, signed."""
        held: dict[int, set[int]] = {}
        for model in self.request("/dump").values():
            for told in model["events"]:
                blocks = told["event"]["data"]["stored"]["blocks"]
                hashes = (block["block_hash"] for block in blocks)
                mine = held.setdefault(told["worker_id"] - 1, set())
                mine.update(one - (1 << 64) if one >> 63 else one for one in hashes)
        return held

    def processor_seconds(self) -> float:
        """What its process has used so far."""
        return processor_seconds(self._process.pid)

    def request(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """POST a body, or GET without one, and read the answer.

        Raises:
            RuntimeError: the indexer refused.
        """
        data = None if body is None else json.dumps(body)
        self._connection.request("GET" if data is None else "POST", path, data, {"content-type": "application/json"})
        response = self._connection.getresponse()
        answer = response.read()
        if response.status >= 300:
            raise RuntimeError(f"Dynamo's indexer answers {path} with {response.status}: {answer[:200]!r}")
        return json.loads(answer)

    def close(self) -> None:
        self._connection.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _depths(self, path: str, prompt: dict[str, Any]) -> dict[int, int]:
        scores = self.request(path, {"model_name": MODEL, **prompt}).get("scores", {})
        return {int(worker) - 1: ranks["0"] // self._block_size for worker, ranks in scores.items()}

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.request_health()
            except (OSError, http.client.HTTPException):
                self._connection.close()
                if self._process.poll() is not None or time.monotonic() > deadline:
                    reason = self._last_words()
                    self.close()
                    raise Unavailable(f"Dynamo's indexer does not start here: {reason}") from None
                time.sleep(0.02)
            else:
                return

    def request_health(self) -> None:
        """GET /health, the least that it answers."""
        self._connection.request("GET", "/health")
        self._connection.getresponse().read()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it says nothing"
