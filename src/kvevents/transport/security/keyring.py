"""Makes the keys of a publisher and its consumers, one folder for each machine that gets one."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kvevents.errors import ConfigError
from kvevents.transport.security.certificate import (
    PRIVATE_SUFFIX,
    PUBLIC_SUFFIX,
    check_curve,
    read_public,
    write_pair,
    write_public,
)
from kvevents.transport.security.keys import CLIENTS, PUBLISHER

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class MadeKeys(NamedTuple):
    """What was made.

    Attributes:
        publisher: the publisher's private file.
        clients: each client's private file, by its name.
        is_new: whether the publisher's was made too, and not there before.
    """

    publisher: Path
    clients: dict[str, Path]
    is_new: bool


def make_keys(folder: Path, clients: Sequence[str] = ("consumer",)) -> MadeKeys:
    """Makes a publisher's key pair in `folder`, unless it has one, and one for each client, which the publisher lists.

    Args:
        folder: made if it is not there. The folder `publisher` in it is for whoever publishes, the one of each client
            for that client.
        clients: names of letters, digits, `-` and `_`.

    Raises:
        ConfigError: a name that cannot be, a client that has keys already (nothing is overwritten, and nothing made
            then), a folder that cannot be written, or a libzmq that cannot encrypt.
    """
    check_curve()
    own = folder / PUBLISHER
    for name in clients:
        if not _NAME.fullmatch(name) or name == PUBLISHER:
            raise ConfigError(
                f"client {name!r}: expected a name of letters, digits, - and _, at most 64, and not {PUBLISHER!r}"
            )
        for path in (folder / name, own / CLIENTS / f"{name}{PUBLIC_SUFFIX}"):
            if path.exists():
                raise ConfigError(f"{path} is there already and is not overwritten; name another client or remove it")
    if len(set(clients)) < len(clients):
        raise ConfigError(f"clients: expected each name once, got {', '.join(clients)}")
    private = own / f"{PUBLISHER}{PRIVATE_SUFFIX}"
    is_new = not private.exists()
    try:
        (own / CLIENTS).mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_new:
            write_pair(own, PUBLISHER)
        public = read_public(private)
        made = {name: _make_client(folder, name, public) for name in clients}
    except OSError as error:
        raise ConfigError(f"cannot write to {error.filename or folder}: {error.strerror}") from None
    return MadeKeys(private, made, is_new)


def _make_client(folder: Path, name: str, publisher: bytes) -> Path:
    home = folder / name
    home.mkdir(mode=0o700)
    private, public = write_pair(home, name)
    write_public(home / f"{PUBLISHER}{PUBLIC_SUFFIX}", publisher)
    write_public(folder / PUBLISHER / CLIENTS / public.name, read_public(public))
    return private
