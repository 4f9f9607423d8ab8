"""A router of your own in 60 lines: it follows what engines hold and sends each prompt where most of it is cached.

Run `python examples/own_router.py http://127.0.0.1:30000 http://127.0.0.1:30001`, then send it /v1/completions.
"""

import json
import sys
import urllib.request
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from kvevents import Decision, PrefixIndex, Router, Subscriber, discover


class OwnRouter:
    """Who holds what, and who is busy.

    Args:
        urls: of the engines; each says on its /server_info where its events are.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = {urlsplit(url).netloc: url for url in urls}
        sources = [source for url in urls for source in discover(url)]
        index = PrefixIndex(sources[0].block_size or 64)
        self.subscriber = Subscriber(sources, index)
        self.subscriber.wait_live(10)
        self.router = Router(index, list(self.urls))

    def send(self, body: bytes) -> tuple[Decision, bytes]:
        """Send a completion request to the worker that is best for its prompt."""
        decision = self.router.select(json.loads(body)["prompt"])
        request = urllib.request.Request(f"{self.urls[decision.worker]}/v1/completions", body)
        try:
            with urllib.request.urlopen(request) as response:
                answer = response.read()
        except OSError:
            self.router.fail(decision)
            raise
        self.router.complete(decision)
        return decision, answer


class Handler(BaseHTTPRequestHandler):
    """One path: completions whose prompt is a list of token ids."""

    router: OwnRouter

    def do_POST(self) -> None:
        decision, answer = self.router.send(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("x-worker", decision.worker)
        self.send_header("x-expected-cached-tokens", str(decision.cached_tokens))
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


if __name__ == "__main__":
    Handler.router = OwnRouter(sys.argv[1:])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_port}"}), flush=True)
    server.serve_forever()
