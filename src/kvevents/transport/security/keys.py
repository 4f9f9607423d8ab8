"""The keys of either side, by the paths of their files: what is secret is read when a socket is made, and kept nowhere.

Whoever publishes is CURVE's server, whichever side binds; whoever reads is its client.

    publisher/publisher.key_secret      the publisher's own; its public half is publisher.key
    publisher/clients/NAME.key          who may read
    NAME/NAME.key_secret                a consumer's own
    NAME/publisher.key                  whom it believes
"""

from dataclasses import dataclass
from pathlib import Path

import zmq

from kvevents.errors import ConfigError
from kvevents.transport.endpoints import Endpoint
from kvevents.transport.security.certificate import check_curve, public_keys, read_private, read_public
from kvevents.transport.sockets import ZmqSocket

CLIENTS = "clients"
PUBLISHER = "publisher"
DOMAIN = b"kvevents"


class _Keys:
    """What the keys of both sides have in common."""

    __slots__ = ()

    @staticmethod
    def check(*endpoints: str | None) -> None:
        """Refuses endpoints that cannot be protected.

        Raises:
            ConfigError: one is inproc.
        """
        for endpoint in endpoints:
            if endpoint is not None and Endpoint.parse(endpoint).transport == "inproc":
                raise ConfigError(f"{endpoint}: inproc does not leave this process and takes no keys; leave them None")


@dataclass(frozen=True, slots=True)
class PublisherKeys(_Keys):
    """A publisher's key pair, and who may read.

    Nobody may whose public key is not in `clients`. The folder is read at each handshake: who is put there may come
    from then on, who is taken out does not come again (but stays until its connection ends).

    Attributes:
        own: the private certificate, `publisher.key_secret`.
        clients: the folder with the public certificates of those who may read; by default `clients` beside `own`.

    Raises:
        ConfigError: a file that cannot be used, or a libzmq that cannot encrypt.
    """

    own: Path
    clients: Path | None = None

    def __post_init__(self) -> None:
        check_curve()
        read_private(Path(self.own))
        self.allowed()

    def allowed(self) -> frozenset[bytes]:
        """The public keys of those who may read, now; z85.

        Raises:
            ConfigError: the folder cannot be read.
        """
        return frozenset(public_keys(self.clients_folder))

    @property
    def clients_folder(self) -> Path:
        """Where the public keys of those are who may read."""
        return Path(self.own).parent / CLIENTS if self.clients is None else Path(self.clients)

    def secure(self, socket: ZmqSocket) -> None:
        """Has a socket, not bound or connected yet, speak to those who are let in by its context's `Doorkeeper` only.

        Raises:
            ConfigError: a file that cannot be used.
        """
        public, private = read_private(Path(self.own))
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, private)
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a doorkeeper nobody comes in


@dataclass(frozen=True, slots=True)
class ConsumerKeys(_Keys):
    """A consumer's key pair, and the publisher's public key.

    Attributes:
        own: the private certificate, such as `consumer.key_secret`.
        publisher: the public certificate of whom it believes; by default `publisher.key` beside `own`.

    Raises:
        ConfigError: a file that cannot be used, or a libzmq that cannot encrypt.
    """

    own: Path
    publisher: Path | None = None

    def __post_init__(self) -> None:
        check_curve()
        read_private(Path(self.own))
        read_public(self.publisher_file)

    @property
    def publisher_file(self) -> Path:
        """Where the publisher's public key is."""
        return Path(self.own).parent / f"{PUBLISHER}.key" if self.publisher is None else Path(self.publisher)

    def secure(self, socket: ZmqSocket) -> None:
        """Has a socket speak to that publisher only; holds for what is connected or bound afterwards.

        Raises:
            ConfigError: a file that cannot be used.
        """
        public, private = read_private(Path(self.own))
        socket.setsockopt(zmq.CURVE_SERVERKEY, read_public(self.publisher_file))
        socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, private)
