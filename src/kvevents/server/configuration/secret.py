"""Tokens and keys: by file or environment, never by argument, and never shown."""

import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from kvevents.errors import ConfigError


class Secret:
    """A token that is compared in constant time and never printed.

    Raises:
        ConfigError: it is empty, or could not stand in a header.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        if not value:
            raise ConfigError("token: expected at least one character, got none")
        if not (value.isascii() and value.isprintable()) or " " in value:
            raise ConfigError("token: expected printable ASCII without spaces, got something else (it is not shown)")
        self._value = value.encode()

    def __repr__(self) -> str:
        return "Secret(...)"

    def matches(self, offered: bytes) -> bool:
        """Whether `offered` is the token; takes the same time wherever they differ."""
        return hmac.compare_digest(self._value, offered)

    @property
    def authorization(self) -> bytes:
        """The value of the header `authorization` that carries it; a secret."""
        return b"Bearer " + self._value

    def reveal(self) -> str:
        """The token itself, for whoever has to send it."""
        return self._value.decode()

    @classmethod
    def from_file(cls, path: Path, *, name: str) -> Self:
        """The token that a file holds, without the white space around it.

        Raises:
            ConfigError: the file cannot be read, or holds none; the message begins with `name`.
        """
        try:
            value = path.read_text().strip()
        except OSError as error:
            raise ConfigError(f"{name}: cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{name}: expected text in {path}, got other bytes") from None
        return cls._named(value, name)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], name: str) -> Self | None:
        """The token in the variable `name`, or in the file that `name`_FILE names; None when neither is set.

        Raises:
            ConfigError: both are set, the file cannot be read, or the token is empty.
        """
        value, path = environment.get(name), environment.get(f"{name}_FILE")
        if value is not None and path is not None:
            raise ConfigError(f"{name}: expected the token or a file, got both {name} and {name}_FILE")
        if path is not None:
            return cls.from_file(Path(path), name=f"{name}_FILE")
        return None if value is None else cls._named(value, name)

    @classmethod
    def _named(cls, value: str, name: str) -> Self:
        if not value:
            raise ConfigError(f"{name}: expected a token, got an empty one")
        try:
            return cls(value)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
