"""Certificates: ZMQ's own files, `NAME.key` with a public key, `NAME.key_secret` with the private one besides."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import zmq
from zmq.auth import load_certificate
from zmq.utils import z85

from kvevents.errors import ConfigError

PUBLIC_SUFFIX = ".key"
PRIVATE_SUFFIX = ".key_secret"

_KEY_BYTES, _RAW_KEY_BYTES = 40, 32
_MAX_FILE_BYTES = 16_384
_FORMAT = """#   {what}
metadata
curve
    public-key = "{public}"
"""
_PRIVATE_LINE = '    secret-key = "{private}"\n'


def check_curve() -> None:
    """Makes sure that this build of libzmq can encrypt.

    Raises:
        ConfigError: it cannot.
    """
    if not zmq.has("curve"):
        raise ConfigError(
            f"keys: libzmq {zmq.zmq_version()} was built without CURVE, so that nothing can be encrypted;"
            " install pyzmq from its wheels, or a libzmq with libsodium"
        )


def read_public(path: Path) -> bytes:
    """The public key of a certificate of either kind.

    Raises:
        ConfigError: the file cannot be read, or is none.
    """
    return _read(path)[0]


def read_private(path: Path) -> tuple[bytes, bytes]:
    """Public and private key.

    Raises:
        ConfigError: the file cannot be read, is none, has no private key, or anybody on this machine can read it.
    """
    public, private = _read(path)
    if private is None:
        raise ConfigError(f"keys: {path}: expected a private key, found a public one only; name the {PRIVATE_SUFFIX}")
    if path.stat().st_mode & stat.S_IRWXO:
        raise ConfigError(f"keys: {path} is open to every user of this machine; chmod 600 it")
    return public, private


def public_keys(folder: Path) -> Iterator[bytes]:
    """The public keys of a folder's `*.key`; files that cannot be read are left out, so that one does not bar all.

    Raises:
        ConfigError: there is no such folder, or anybody on this machine can put files into it.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == PUBLIC_SUFFIX)
        mode = folder.stat().st_mode
    except OSError as error:
        raise ConfigError(f"keys: cannot read the folder {folder}: {error.strerror}") from None
    if mode & stat.S_IWOTH:
        raise ConfigError(f"keys: every user of this machine can list somebody in {folder}; chmod o-w it")
    for path in paths:
        try:
            yield read_public(path)
        except ConfigError:
            continue


def write_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """Makes a new key pair; the private file can be read by its owner only, from its first byte on.

    Returns:
        The private and the public file.

    Raises:
        FileExistsError: one of them is there already.
        OSError: it cannot be written.
    """
    public, private = (key.decode() for key in zmq.curve_keypair())
    private_path, public_path = folder / f"{name}{PRIVATE_SUFFIX}", folder / f"{name}{PUBLIC_SUFFIX}"
    secret = _FORMAT.format(what="PRIVATE: keep it on one machine.", public=public)
    _write(private_path, secret + _PRIVATE_LINE.format(private=private), 0o600)
    write_public(public_path, public.encode())
    return private_path, public_path


def write_public(path: Path, public: bytes) -> None:
    """Writes a public certificate.

    Raises:
        FileExistsError: it is there already.
        OSError: it cannot be written.
    """
    _write(path, _FORMAT.format(what="Public: may be shown to anyone.", public=public.decode()), 0o644)


def _write(path: Path, text: str, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)


def _read(path: Path) -> tuple[bytes, bytes | None]:
    """What is wrong is told without what is in the file: it may be a private key after all."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(f"keys: {path}: expected a certificate, found a file above {_MAX_FILE_BYTES} bytes")
        public, private = load_certificate(path)
    except OSError as error:
        raise ConfigError(f"keys: cannot read {path}: {error.strerror}") from None
    except ValueError:
        public, private = b"", None
    if not _is_key(public) or not (private is None or _is_key(private)):
        raise ConfigError(
            f"keys: {path}: expected a ZMQ certificate as `kvevents keys` writes it, found something else"
        )
    return public, private


def _is_key(key: bytes) -> bool:
    if len(key) != _KEY_BYTES:
        return False
    try:
        return len(z85.decode(key)) == _RAW_KEY_BYTES
    except (KeyError, ValueError, OverflowError, zmq.ZMQError):
        return False
