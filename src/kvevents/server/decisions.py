"""What the router would do with a prompt, and what the workers hold of it; nothing is sent to any."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qs

import msgspec

from kvevents.routing import NoWorkerError
from kvevents.server.errors import HttpError
from kvevents.server.prompts import Prompt
from kvevents.server.proxy.admission import FULL, OTHER_MODEL
from kvevents.server.proxy.direct import Handler
from kvevents.server.proxy.request import Request

if TYPE_CHECKING:
    from kvevents.server.service import Service

LARGE_BYTES = 2**21
"""Bodies from here on are worked on beside the event loop: so many take 2 ms."""

_encode = msgspec.json.Encoder().encode

_Answer: TypeAlias = Callable[[Prompt, Request], bytes]


class Decisions:
    """`/route` and `/query`."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self.handlers: Mapping[str, Handler] = {"/route": self.route, "/query": self.query}

    def route(self, request: Request) -> bytes | Awaitable[bytes]:
        """`POST /route`: where this prompt would go now. Only asks: whoever looks changes no later decision."""
        return self._answer(request, self._decide)

    def query(self, request: Request) -> bytes | Awaitable[bytes]:
        """`POST /query`: how much of this prompt each worker holds."""
        return self._answer(request, self._match)

    def _answer(self, request: Request, answer: _Answer) -> bytes | Awaitable[bytes]:
        prompts = self._service.prompts
        if len(request.body) >= LARGE_BYTES:
            return self._answer_large(request, answer)
        prompt = prompts.read(request.body, request.path)
        if prompt.needs_tokenizing:
            return self._answer_tokenized(prompt, request, answer)
        return answer(_known(prompt), request)

    async def _answer_tokenized(self, prompt: Prompt, request: Request, answer: _Answer) -> bytes:
        return answer(_known(await self._service.prompts.tokenize(prompt)), request)

    async def _answer_large(self, request: Request, answer: _Answer) -> bytes:
        prompts = self._service.prompts
        prompt = await prompts.tokenize(await prompts.read_beside(request.body, request.path))
        return await asyncio.to_thread(answer, _known(prompt), request)

    def _decide(self, prompt: Prompt, request: Request) -> bytes:
        fleet = self._service.fleet
        barred = dict.fromkeys(self._service.proxy.admission.full, FULL)
        barred |= dict.fromkeys(fleet.unfit(prompt.model), OTHER_MODEL)
        try:
            decision = self._service.router.select(
                prompt.tokens,
                lora_name=prompt.lora_name,
                cache_salt=prompt.cache_salt,
                extra_keys=prompt.extra_keys,
                exclude=barred,
                session=prompt.session,
                output_tokens=prompt.max_tokens,
                approximate=prompt.approximate,
                dry_run=True,
            )
        except NoWorkerError as error:
            raise NoWorkerError(fleet.why_nobody(error)) from None
        shown = decision.document()
        shown |= {"url": fleet[decision.worker].url, "block_size": fleet.index.block_size, "prompt": _read_as(prompt)}
        if _wants_explanation(request):
            shown["explanation"] = decision.explain()
        return _encode(shown)

    def _match(self, prompt: Prompt, _request: Request) -> bytes:
        index = self._service.fleet.index
        matches = index.match(
            prompt.tokens, lora_name=prompt.lora_name, cache_salt=prompt.cache_salt, extra_keys=prompt.extra_keys
        )
        return _encode(
            {
                "block_size": index.block_size,
                "blocks": len(prompt.tokens) // index.block_size,
                "matches": list(matches),
                "prompt": _read_as(prompt),
            }
        )


def _wants_explanation(request: Request) -> bool:
    query = request.target.partition(b"?")[2]
    return parse_qs(query.decode("latin-1")).get("explain", ["0"])[-1] not in {"0", ""}


def _read_as(prompt: Prompt) -> dict[str, object]:
    """How the prompt was read, for whoever wonders why it matches nothing."""
    return {
        "source": prompt.source,
        "tokens": len(prompt.tokens),
        "approximate": prompt.approximate,
        "why_approximate": prompt.unread,
    }


def _known(prompt: Prompt) -> Prompt:
    """A prompt that can be answered for.

    Raises:
        HttpError: 400, it is none.
    """
    if prompt.ignored:
        field, expected, offset = prompt.ignored[0]
        raise HttpError(400, "bad_request", f"body: {field}: expected {expected}, got something else at byte {offset}")
    if prompt.unread is not None and not prompt.approximate:
        raise HttpError(400, "bad_request", prompt.unread)
    return prompt
