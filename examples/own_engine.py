"""An engine of your own in 60 lines: it computes nothing, but caches prompts and announces what it holds.

Run `python examples/own_engine.py 30000`, then look at it: `kvevents tail http://127.0.0.1:30000`.
"""

import json
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from kvevents import EventRecorder, RadixCache, ZmqPublisher

PAGE = 16
PUBLISHER = ZmqPublisher("tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0", topic="kv-events")
CACHE = RadixCache(page_size=PAGE, capacity=65_536, recorder=EventRecorder(PAGE, coalesce="chain"))
LOCK = threading.Lock()  # a cache is used by one thread at a time


def publish() -> None:
    """Send what has changed, if anything has."""
    if (batch := CACHE.take_batch()) is not None:
        PUBLISHER.publish(batch)


def complete(prompt: Sequence[int]) -> dict[str, Any]:
    """Answer a prompt; how much of it was cached is in the usage, where consumers look."""
    with LOCK:
        found = min(CACHE.match_prefix(prompt).length, (len(prompt) - 1) // PAGE * PAGE)
        CACHE.insert(prompt)  # here an engine would compute prompt[found:]
        publish()
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": found}}
    return {"object": "text_completion", "model": "own", "choices": [{"index": 0, "text": "!"}], "usage": usage}


def server_info() -> dict[str, Any]:
    """Where the events are, as SGLang says it."""
    live, replay = (urlsplit(at).port for at in (PUBLISHER.endpoint, PUBLISHER.replay_endpoint or ""))
    sockets = {"endpoint_host": "127.0.0.1", "endpoint_port_base": live, "replay_endpoint_port_base": replay}
    return {"kv_events": {"publisher": "zmq", **sockets, "topic": "kv-events", "block_size": PAGE, "dp_size": 1}}


class Handler(BaseHTTPRequestHandler):
    """The few paths that routers and tools ask for."""

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": "own", "object": "model"}]}
        self._answer({"/server_info": server_info(), "/v1/models": models, "/health": {}}.get(self.path))

    def do_POST(self) -> None:
        prompt = json.loads(self.rfile.read(int(self.headers["content-length"])))["prompt"]
        self._answer(complete(list(prompt.encode()) if isinstance(prompt, str) else prompt))

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(404 if value is None else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    publish()
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0), Handler)
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_port}"}), flush=True)
    server.serve_forever()
