"""`kvevents serve` as a user runs it, over engines that have nothing but their event sockets."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import urlsplit

from benchmarks.http_client import HttpClient
from benchmarks.process import processor_seconds

MODEL = "model"


class Engine:
    """Says where a worker's events are, and that it is well."""

    def __init__(self, endpoint: str, block_size: int) -> None:
        events = {"publisher": "zmq", "endpoint": endpoint, "block_size": block_size, "dp_size": 1}
        answers = {"/server_info": {"kv_events": events}, "/v1/models": {"object": "list", "data": [{"id": MODEL}]}}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(answers.get(self.path, {})).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class OurRouter:
    """Follows the fleet and answers `POST /query`; a `Follower`."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._engines: list[Engine] = []

    def follow(self, endpoints: Sequence[str]) -> None:
        """Start it over engines with these endpoints."""
        self._engines = [Engine(endpoint, self._block_size) for endpoint in endpoints]
        workers = [option for engine in self._engines for option in ("--worker", engine.url)]
        self._numbers = {urlsplit(engine.url).netloc: number for number, engine in enumerate(self._engines)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvevents", "serve", "--port", "0", "--block-size", str(self._block_size), *workers],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self._process.stdout is not None
        url: str = json.loads(self._process.stdout.readline())["url"]
        self.port = int(url.rpartition(":")[2])
        self._http = HttpClient(self.port)

    def depths(self, tokens: Sequence[int]) -> dict[int, int]:
        """Leading blocks of a prompt by worker, of those that have any."""
        answer = json.loads(self._http.send(self.query(tokens)))
        return {self._numbers[match["worker"]]: match["total"] for match in answer["matches"]}

    @staticmethod
    def query(tokens: Sequence[int]) -> bytes:
        """A request for a prompt."""
        return HttpClient.post("/query", {"token_ids": list(tokens)})

    def processor_seconds(self) -> float:
        return processor_seconds(self._process.pid)

    def close(self) -> None:
        self._http.close()
        self._process.terminate()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        for engine in self._engines:
            engine.close()
