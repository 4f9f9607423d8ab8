"""Dynamo's standalone indexer, `python -m dynamo.indexer`: it follows ZMQ sockets and answers over HTTP."""

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence

from benchmarks.dynamo import install_indexer
from benchmarks.http_client import HttpClient
from benchmarks.peers import ENVIRONMENT, Unavailable
from benchmarks.process import processor_seconds

MODEL = "model"
_START_S = 60.0


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
        self._http = self._connect()

    def follow(self, endpoints: Sequence[str]) -> None:
        """Begin to follow these workers."""
        for worker, endpoint in enumerate(endpoints):
            where = {"instance_id": worker + 1, "endpoint": endpoint}
            what = {"model_name": MODEL, "block_size": self._block_size}
            self._http.send(HttpClient.post("/register", where | what))

    def depths(self, tokens: Sequence[int]) -> dict[int, int]:
        """Leading blocks of a prompt by worker, of those that have any."""
        scores = json.loads(self._http.send(self.query(tokens))).get("scores", {})
        return {int(worker) - 1: ranks["0"] // self._block_size for worker, ranks in scores.items()}

    @staticmethod
    def query(tokens: Sequence[int]) -> bytes:
        """A request for a prompt."""
        return HttpClient.post("/query", {"model_name": MODEL, "token_ids": list(tokens)})

    def blocks(self) -> dict[int, set[int]]:
        """All blocks that the indexer has, by worker: the engine's hashes, signed."""
        held: dict[int, set[int]] = {}
        for model in json.loads(self._http.send(HttpClient.get("/dump"))).values():
            for told in model["events"]:
                blocks = told["event"]["data"]["stored"]["blocks"]
                hashes = (block["block_hash"] for block in blocks)
                mine = held.setdefault(told["worker_id"] - 1, set())
                mine.update(one - (1 << 64) if one >> 63 else one for one in hashes)
        return held

    def processor_seconds(self) -> float:
        """What its process has used so far."""
        return processor_seconds(self._process.pid)

    def close(self) -> None:
        self._http.close()
        self._stop()

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _connect(self) -> HttpClient:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                return HttpClient(self.port)
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    reason = self._last_words()
                    self._stop()
                    raise Unavailable(f"Dynamo's indexer does not start here: {reason}") from None
                time.sleep(0.02)

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it says nothing"
