"""Who we are to the broker, and how the connection is protected: by file or environment, never by argument or URL."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kvevents.errors import ConfigError

_PREFIX = "KVEVENTS_NATS_"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAccess:
    """Credentials and TLS of a connection; files are read at each connection, so that they can be renewed in place.

    Attributes:
        creds: a `.creds` file (JWT and seed).
        nkey: a file with an nkey seed.
        user: a user's name; its password comes by `password_file` or from the environment.
        password_file: a file with the user's password, or with a token if there is no user.
        ca: certificates to trust, PEM; turns TLS on.
        certificate: the client's own certificate, PEM; turns TLS on.
        key: its key, PEM.
        tls: use TLS with the system's trust.

    Raises:
        ConfigError: more than one kind of credentials, or a half of a pair.
    """

    creds: Path | None = None
    nkey: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    tls: bool = False
    _password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        kinds = [
            name
            for name, value in (
                ("creds", self.creds),
                ("nkey", self.nkey),
                ("user or password", self.user or self.password_file or self._password),
            )
            if value
        ]
        if len(kinds) > 1:
            raise ConfigError(f"NATS access: one kind of credentials, got {' and '.join(kinds)}")
        if self.user and not (self.password_file or self._password):
            raise ConfigError(f"NATS access: user {self.user!r} has no password: set {_PREFIX}PASSWORD_FILE")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("NATS access: a certificate and its key go together, only one was given")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Access as the variables `KVEVENTS_NATS_*` say.

        These are `CREDS`, `NKEY`, `USER`, `PASSWORD`, `PASSWORD_FILE`, `CA`, `CERT`, `KEY` (paths but for user and
        password) and `TLS`.

        Raises:
            ConfigError: see the class.
        """

        def path(name: str) -> Path | None:
            value = environment.get(_PREFIX + name)
            return Path(value) if value else None

        return cls(
            creds=path("CREDS"),
            nkey=path("NKEY"),
            user=environment.get(_PREFIX + "USER") or None,
            password_file=path("PASSWORD_FILE"),
            ca=path("CA"),
            certificate=path("CERT"),
            key=path("KEY"),
            tls=environment.get(_PREFIX + "TLS", "") not in {"", "0", "false", "no"},
            _password=environment.get(_PREFIX + "PASSWORD") or None,
        )

    @property
    def kind(self) -> str:
        """The kind of credentials, for messages: it names no secret."""
        if self.creds is not None:
            return f"credentials file {self.creds}"
        if self.nkey is not None:
            return f"nkey file {self.nkey}"
        if self.user is not None:
            return f"user {self.user!r}"
        return "token" if self.password_file or self._password else "no credentials"

    def options(self) -> dict[str, Any]:
        """Arguments for nats-py's `connect`.

        Raises:
            ConfigError: a file that cannot be read or used.
        """
        options: dict[str, Any] = {}
        if self.creds is not None:
            _read(self.creds)
            options["user_credentials"] = str(self.creds)
        elif self.nkey is not None:
            options["nkeys_seed_str"] = _read(self.nkey)
        elif self.user is not None:
            options |= {"user": self.user, "password": self._secret()}
        elif self.password_file or self._password:
            options["token"] = self._secret()
        if self.tls or self.ca or self.certificate:
            options["tls"] = self._tls_context()
        return options

    def _secret(self) -> str:
        return self._password or _read(self.password_file or Path())

    def _tls_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(path) for path in (self.ca, self.certificate, self.key) if path)
            raise ConfigError(f"NATS access: TLS cannot be set up from {files}: {error}") from None
        return context


def _read(path: Path) -> str:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"NATS access: cannot read {path}: {getattr(error, 'strerror', 'not text')}") from None
    if not text:
        raise ConfigError(f"NATS access: {path} is empty")
    return text
