"""`kvevents._core.prompt`: what routing needs of a request, in one pass over its body."""

from typing import Final, Literal, TypeAlias, final

_Source: TypeAlias = Literal["ids", "text", "chat", "embedding", "none"]

STAND_IN: Final[int]
"""Ids from here on stand for text: no vocabulary has them."""

MAX_ID: Final[int]
"""The highest token id that is taken."""

@final
class Request:
    """What a body says. It keeps the body, and makes what is asked of it."""

    @property
    def source(self) -> _Source:
        """What the prompt was given as; `embedding`: of any form, as `input`."""

    @property
    def tokens(self) -> memoryview:
        """The first prompt's ids where ids were given, 32 bits each where all of them fit, else 64; a copy."""

    @property
    def text(self) -> str | None:
        """The first prompt where text was given; an escaped surrogate that stands alone is U+FFFD."""

    @property
    def prompts(self) -> int:
        """How many prompts there are."""

    @property
    def unread(self) -> str | None:
        """Why there is no prompt to go by."""

    @property
    def ignored(self) -> list[tuple[str, str, int]]:
        """Fields of a type that no engine takes: name, what was expected, offset of the value."""

    @property
    def is_stream(self) -> bool:
        """`stream`."""

    @property
    def wants_usage(self) -> bool:
        """`stream_options.include_usage`."""

    @property
    def max_tokens(self) -> int | None:
        """`max_completion_tokens`, `max_tokens` or `sampling_params.max_new_tokens`."""

    @property
    def add_special_tokens(self) -> bool | None:
        """`add_special_tokens`, where it is given."""

    @property
    def model(self) -> str | None:
        """`model`."""

    @property
    def lora_name(self) -> str | None:
        """`lora_name` or `lora_path`; of several adapters the first prompt's."""

    @property
    def cache_salt(self) -> str | None:
        """`cache_salt`."""

    @property
    def session(self) -> str | None:
        """`session_id`, `prompt_cache_key` or `user`."""

    def facts(
        self,
    ) -> tuple[
        str | None,
        str | None,
        str | None,
        bool,
        bool,
        int | None,
        str | None,
        _Source,
        int,
        list[tuple[str, str, int]],
        str | None,
        bool,
    ]:
        """Most of it at once.

        Model, adapter, salt, whether the answer streams and ends with the usage, the most tokens of it, session,
        source, prompts, what was ignored, why it is unread, whether it is a text.
        """
    @property
    def attached(self) -> str | None:
        """A digest of the images and the like beside a prompt of text or ids."""

    def chat(self) -> bytes | None:
        """What a template needs of a chat, as a JSON object; texts of images and the like are digests in it."""

    def stand_in(self) -> memoryview:
        """Ids of 64 bits from `STAND_IN` on, one for four bytes of the prompt's text, else of its JSON."""

def byte_ids(text: str, /) -> memoryview:
    """The bytes of a text in UTF-8 as ids of 32 bits."""

def read_request(body: bytes, /) -> Request:
    """Read a body: all of it is checked, and what routing does not need is not built.

    JSON is taken as `json.loads` takes it, in UTF-8: the last of equal keys wins. The GIL is released for long bodies.

    Raises:
        WireError: it is no JSON, or nested more than 512 deep.
        ValueError: it is no object, or has no ids from 0 to `MAX_ID` in an array that begins as token ids.
    """
