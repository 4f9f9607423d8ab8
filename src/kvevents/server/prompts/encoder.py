"""A model's tokenizer and template, as its engine uses them."""

import hashlib
import re
import secrets
from array import array
from pathlib import Path
from typing import Any

import msgspec

from kvevents.server.prompts.counters import StandInReason
from kvevents.server.prompts.messages import Conversation
from kvevents.server.prompts.process import Task
from kvevents.server.prompts.template import ChatTemplate, RefusedError


class RenderingError(Exception):
    """A prompt that cannot be made into ids here.

    Attributes:
        reason: the counter that it goes to.
    """

    def __init__(self, reason: StandInReason, message: str) -> None:
        super().__init__(message)
        self.reason: StandInReason = reason


class Encoder:
    """Makes ids of texts and chats.

    Attributes:
        note: what could be found out about the template, for people.

    Raises:
        OSError: a file is missing.
        ValueError: a file is none of its kind.
    """

    def __init__(self, task: Task) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415 - only the process that tokenizes pays for it

        self._engine = task.tokenizer.engine
        self._max_text_bytes = task.max_text_bytes
        directory = Path(task.tokenizer.path)
        self._tokenizer = Tokenizer.from_buffer((directory / "tokenizer.json").read_bytes())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        override = task.tokenizer.chat_template
        self._template = ChatTemplate.load(
            directory, override=None if override is None else Path(override), content=task.tokenizer.content
        )
        self.note = "no chat template" if self._template is None else f"content as {self._template.content}"

    def text(self, text: str, *, add_special_tokens: bool) -> "array[int]":
        """The ids of a text."""
        return array("I", self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def chat(self, body: bytes) -> tuple["array[int]", list[tuple[int, str]]]:
        """The ids of a chat, given as a JSON object, and its images: where each stands, and its identity.

        Raises:
            RenderingError: the template refuses it, or there is none.
        """
        template = self._template
        if template is None:
            raise RenderingError("template", "its directory has no chat template")
        try:
            request = msgspec.json.decode(body)
            marks = _Marks()
            conversation = Conversation.read(
                request, engine=self._engine, as_parts=template.content == "parts", mark=marks.add
            )
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, KeyError, ValueError) as error:
            raise RenderingError("unreadable", f"messages: {error}") from None
        try:
            texts = conversation.render(template, max_bytes=self._max_text_bytes)
        except RefusedError as error:
            raise RenderingError("template", str(error)) from None
        ids: array[int] = array("I")
        for text in texts:
            for part in marks.split(text):
                marks.passed(part, len(ids))
                if part not in marks.identities:
                    ids.extend(self.text(part, add_special_tokens=False))
        return ids, marks.places()


class _Marks:
    """Words that stand for images in a text, so that their places are found in what a template makes of it."""

    def __init__(self) -> None:
        self._nonce = secrets.token_hex(8)  # nobody can write them by hand
        self.identities: dict[str, str] = {}
        self._found: dict[str, int] = {}

    def add(self, part: dict[str, Any]) -> str:
        """The word for a part of a message."""
        mark = f"<{self._nonce}-{len(self.identities)}>"
        named = part.get("uuid")
        said = msgspec.json.encode(part)
        self.identities[mark] = named if isinstance(named, str) else hashlib.blake2b(said, digest_size=16).hexdigest()
        return mark

    def split(self, text: str) -> list[str]:
        """The text in pieces, of which every mark is one."""
        if not self.identities:
            return [text]
        return [piece for piece in re.split(f"(<{self._nonce}-[0-9]+>)", text) if piece]

    def passed(self, piece: str, position: int) -> None:
        """A piece was reached."""
        if piece in self.identities:
            self._found.setdefault(piece, position)

    def places(self) -> list[tuple[int, str]]:
        """Where each image stands; one that the template left out tells the whole prompt apart."""
        return sorted((self._found.get(mark, 0), identity) for mark, identity in self.identities.items())
