"""Who may do what."""

import ipaddress
import re
from pathlib import Path

import msgspec

from kvevents.errors import ConfigError
from kvevents.server.configuration.listen import ListenSettings
from kvevents.server.configuration.secret import Secret

_NAME = re.compile(r"[A-Za-z0-9._-]+")


class SecuritySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who may do what.

    Attributes:
        client_token: opens `/v1/*`; in the environment as KVEVENTS_CLIENT_TOKEN. Without one it is open.
        client_token_file: a file with the client's token, as KVEVENTS_CLIENT_TOKEN_FILE names one.
        admin_token: opens everything else but health; in the environment as KVEVENTS_ADMIN_TOKEN.
        admin_token_file: a file with the admin's token, as KVEVENTS_ADMIN_TOKEN_FILE names one.
        worker_api_key: API key of the engines that have none of their own; in the environment as
            KVEVENTS_WORKER_API_KEY.
        worker_api_key_file: a file with the API key of the engines that have none of their own.
        worker_hosts: hosts that workers added at run time may have, besides those of `[[worker]]`.
        allowed_hosts: names that browsers may call the router by, besides loopback names, addresses and `[listen]`
            host.
        trusted_proxies: addresses or networks of proxies in front, whose X-Forwarded-For and X-Forwarded-Proto are
            believed.
        session_s: how long a login to the dashboard holds.
        wrong_tokens_per_minute: wrong tokens that an address may send before it gets 429.

    Raises:
        ConfigError: a value that cannot work.
    """

    client_token: Secret | None = None
    client_token_file: Path | None = None
    admin_token: Secret | None = None
    admin_token_file: Path | None = None
    worker_api_key: Secret | None = None
    worker_api_key_file: Path | None = None
    worker_hosts: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    session_s: float = 12 * 3600.0
    wrong_tokens_per_minute: int = 10

    def __post_init__(self) -> None:
        for field in ("worker_hosts", "allowed_hosts"):
            for host in getattr(self, field):
                _check_host(field, host)
        client, admin = self.client_token, self.admin_token
        if client is not None and admin is not None and admin.matches(client.reveal().encode()):
            raise ConfigError("admin_token: expected another one than the client's, which every client has")
        for proxy in self.trusted_proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError as error:
                raise ConfigError(f"trusted_proxies: expected an address or a network: {error}") from None
        if not self.session_s > 0:
            raise ConfigError(f"session_s: expected more than 0, got {self.session_s}")
        if self.wrong_tokens_per_minute < 1:
            raise ConfigError(f"wrong_tokens_per_minute: expected at least 1, got {self.wrong_tokens_per_minute}")

    def check_binding(self, listen: ListenSettings) -> None:
        """Refuse to listen beyond this machine without both tokens.

        Raises:
            ConfigError: the address is not loopback and a token is missing.
        """
        missing = [
            name
            for name, token in (
                ("KVEVENTS_CLIENT_TOKEN", self.client_token),
                ("KVEVENTS_ADMIN_TOKEN", self.admin_token),
            )
            if token is None
        ]
        if missing and not listen.is_loopback:
            raise ConfigError(
                f"--host {listen.host} is reachable from other machines: set {' and '.join(missing)} (or the same name "
                f"with _FILE), or listen on 127.0.0.1"
            )


def _check_host(field: str, host: str) -> None:
    """Refuse what no host of a URL can be equal to, so that it would allow nothing and nobody would know why.

    Raises:
        ConfigError: it is a URL, has a port, or is a pattern.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _NAME.fullmatch(host):
            raise ConfigError(
                f"{field}: expected a host's name or address, without scheme, port or pattern, got {host!r}"
            ) from None
