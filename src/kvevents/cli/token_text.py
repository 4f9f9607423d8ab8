"""Token ids as the text that they stand for."""

import itertools
from pathlib import Path

from kvevents.errors import ConfigError
from kvevents.events import TokenIds
from kvevents.server.prompts import TokenizerSettings
from kvevents.server.prompts.settings import BYTES


class TokenText:
    """Makes text of token ids.

    Args:
        tokenizer: a directory with `tokenizer.json`; or `bytes`, the simulated engine's.

    Raises:
        ConfigError: there is none, it is none, or the extra is missing.
    """

    def __init__(self, tokenizer: Path) -> None:
        settings = TokenizerSettings(models="*", path=str(tokenizer))  # which refuses what cannot work
        self._tokenizer = None
        if settings.path == BYTES:
            return
        from tokenizers import Tokenizer  # noqa: PLC0415 - an extra

        file = tokenizer / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_buffer(file.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file}: expected a tokenizer: {error}") from error

    def of(self, tokens: TokenIds) -> str:
        """The text; of pairs that of their first members. What is no token of this tokenizer becomes U+FFFD."""
        ids = [token if isinstance(token, int) else token[0] for token in tokens]
        if self._tokenizer is None:
            return b"".join(bytes([one]) if one < 256 else b"\xff" for one in ids).decode(errors="replace")
        return "".join(
            str(self._tokenizer.decode(list(run), skip_special_tokens=False))
            if is_known
            else "\N{REPLACEMENT CHARACTER}" * len(list(run))
            for is_known, run in itertools.groupby(ids, self._is_known)
        )

    def _is_known(self, token: int) -> bool:
        assert self._tokenizer is not None
        return token < 1 << 32 and self._tokenizer.id_to_token(token) is not None
