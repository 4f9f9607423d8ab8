"""What the router would do with a prompt, and what the workers hold of it; nothing is sent to any."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kvevents.server.body import read_body
from kvevents.server.errors import HttpError
from kvevents.server.prompts import Prompt
from kvevents.server.service import Service

_encode = msgspec.json.Encoder().encode


class Decisions:
    """`/route` and `/query`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def route(self, request: Request) -> Response:
        """`POST /route`: where this prompt would go. Takes a turn, as a request would, but opens none."""
        prompt = await self._prompt(request)
        router, fleet = self._service.router, self._service.fleet
        decision = router.select(
            prompt.tokens,
            lora_name=prompt.lora_name,
            cache_salt=prompt.cache_salt,
            extra_keys=prompt.extra_keys,
            exclude=fleet.unfit(prompt.model),
            session=prompt.session,
            output_tokens=prompt.max_tokens,
            approximate=prompt.approximate,
        )
        router.complete(decision)
        shown = msgspec.structs.asdict(decision)
        del shown["id"]
        return _json({"url": fleet[decision.worker].url, "block_size": fleet.index.block_size, **shown})

    async def query(self, request: Request) -> Response:
        """`POST /query`: how much of this prompt each worker holds."""
        prompt = await self._prompt(request)
        index = self._service.fleet.index
        matches = index.match(
            prompt.tokens, lora_name=prompt.lora_name, cache_salt=prompt.cache_salt, extra_keys=prompt.extra_keys
        )
        return _json(
            {
                "block_size": index.block_size,
                "blocks": len(prompt.tokens) // index.block_size,
                "matches": list(matches),
            }
        )

    async def _prompt(self, request: Request) -> Prompt:
        body = await read_body(request.scope, request.receive, limit=self._service.settings.proxy.max_body_bytes)
        prompt = self._service.prompts.read(body, request.url.path)
        if prompt.needs_tokenizing:
            prompt = await self._service.prompts.tokenize(prompt)
        if prompt.ignored:
            field, expected, offset = prompt.ignored[0]
            raise HttpError(
                400, "bad_request", f"body: {field}: expected {expected}, got something else at byte {offset}"
            )
        if prompt.unread is not None and not prompt.approximate:
            raise HttpError(400, "bad_request", prompt.unread)
        return prompt


def _json(value: object) -> Response:
    return Response(_encode(value), media_type="application/json")
