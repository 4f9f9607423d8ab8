"""The way of a completion: choose a worker, pass the bytes on unchanged, keep the books."""

import asyncio
import io
import time

import aiohttp
from starlette.types import Receive, Scope, Send

from kvevents.routing import Decision, NoWorkerError
from kvevents.server.body import read_body
from kvevents.server.client import Client
from kvevents.server.errors import HttpError
from kvevents.server.ledger import Outcome
from kvevents.server.prompts import Prompt
from kvevents.server.service import Service
from kvevents.server.upstream import (
    UnansweredError,
    error_event,
    failure,
    request_headers,
    response_headers,
    target_url,
)
from kvevents.server.usage import UsageTail

MAX_DELIVERIES = 2
"""Workers that may fail over one request: one that brings engines down must not bring down all of them."""

_LARGE_BYTES = 2**20


class Proxy:
    """ASGI application for the endpoints that run a model."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(scope, receive, limit=self._service.settings.proxy.max_body_bytes)
        prompt = self._service.prompts.read(body, scope["path"])
        if prompt.needs_tokenizing:
            prompt = await self._service.prompts.tokenize(prompt)
        client = Client(send)
        answer = asyncio.create_task(self._answer(scope, body, prompt, client))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            answer.cancel()
            await asyncio.wait((answer, gone))
        if not answer.cancelled():
            answer.result()

    async def _answer(self, scope: Scope, body: bytes, prompt: Prompt, client: Client) -> None:
        """Try workers until one has answered, or none is left."""
        service = self._service
        tried = set(service.fleet.unfit(prompt.model))
        deliveries = 0
        trouble: str | None = None
        service.ledger.unread += prompt.unread is not None
        while True:
            try:
                decision = self._choose(prompt, tried)
            except NoWorkerError as error:
                service.ledger.unplaced += 1
                if trouble is None:
                    raise
                raise HttpError(502, "worker_failed", f"{trouble}; {error}") from None
            service.ledger.placed(decision, prompt.source)
            try:
                await self._attempt(decision, scope, body, client)
            except UnansweredError as error:
                trouble = f"worker {decision.worker} {error}"
                if error.is_late:
                    raise HttpError(504, "worker_timeout", trouble) from None
                tried.add(decision.worker)
                deliveries += error.delivered
                if deliveries == MAX_DELIVERIES:
                    raise HttpError(502, "worker_failed", f"{trouble}, the second over this request") from None
            else:
                return

    def _choose(self, prompt: Prompt, tried: set[str]) -> Decision:
        with self._service.metrics.select_seconds.time():
            return self._service.router.select(
                prompt.tokens, lora_name=prompt.lora_name, cache_salt=prompt.cache_salt, exclude=tried
            )

    async def _attempt(self, decision: Decision, scope: Scope, body: bytes, client: Client) -> None:
        """Have one worker answer. The decision has ended, and is in the books, when this returns or raises.

        Raises:
            UnansweredError: the worker failed before anything was sent to the client.
        """
        service = self._service
        tail = UsageTail()
        outcome: Outcome = "client_left"
        try:
            outcome = await self._pass_on(decision, scope, body, client, tail)
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = failure(error)
            service.fleet.suspect(decision.worker, reason)
            if not client.is_started:
                outcome = "unanswered"
                raise UnansweredError(reason, error) from error
            outcome = "broken"
            if client.is_event_stream:
                message = f"worker {decision.worker} {reason}"
                await client.send((b"" if tail.ends_an_event() else b"\n\n") + error_event(message))
                await client.end()
            # else: the reply stays incomplete, and the server closes the connection on it
        finally:
            (service.router.complete if outcome == "ok" else service.router.fail)(decision)
            service.ledger.ended(decision, outcome, tail.usage() if outcome == "ok" else None)

    async def _pass_on(self, decision: Decision, scope: Scope, body: bytes, client: Client, tail: UsageTail) -> Outcome:
        service = self._service
        worker = service.fleet[decision.worker]
        started = time.perf_counter()
        async with service.http.post(
            target_url(worker.url, scope["path"], scope["query_string"]),
            data=body if len(body) < _LARGE_BYTES else io.BytesIO(body),
            headers=request_headers(scope["headers"], decision, ranks=worker.ranks),
            allow_redirects=False,
        ) as response:
            try:
                # The first bytes go with the headers: until there are some, another worker can still take over.
                chunk = await response.content.readany()
                if response.status == 200:
                    service.router.prefill_done(decision)
                    service.metrics.first_byte_seconds.observe(time.perf_counter() - started)
                headers = response_headers(response.raw_headers, decision, block_size=service.fleet.index.block_size)
                await client.start(response.status, headers)
                while chunk:
                    tail.feed(chunk)
                    await client.send(chunk)
                    chunk = await response.content.readany()
                await client.end()
            finally:
                response.close()  # what is not read to its end is not wanted any more
        return "ok" if response.status == 200 else "refused"


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
