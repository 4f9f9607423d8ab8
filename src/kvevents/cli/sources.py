"""Which sources the URLs of a command mean."""

from collections.abc import Sequence

from kvevents.errors import ConfigError
from kvevents.transport import ConsumerKeys, Source, discover, rank_sources

_HTTP = ("http://", "https://")


def sources_of(
    urls: Sequence[str],
    *,
    replay: Sequence[str] = (),
    topic: str = "",
    bind: bool = False,
    dp_size: int = 1,
    keys: ConsumerKeys | None = None,
) -> list[Source]:
    """The sources of workers, each given by its base URL or its ZMQ socket, with a name before it or without.

    Args:
        urls: `http://`, `tcp://` or `ipc://`; `NAME=URL` gives a worker a name, by default its address.
        replay: of the ZMQ sockets among them, in their order.
        topic: of the ZMQ sockets.
        bind: of the ZMQ sockets.
        dp_size: ranks of each ZMQ socket.
        keys: for all.

    Raises:
        ConfigError: there are none, or options do not go with them.
        TransportError: a worker does not say where its sockets are.
    """
    if not urls:
        raise ConfigError("expected the URL of a worker, got none")
    named = [_named(url) for url in urls]
    by_hand = [url for _, url in named if not url.startswith(_HTTP)]
    if not by_hand and (replay or topic or bind or dp_size > 1):
        raise ConfigError("server info says what --replay, --topic, --bind and --dp-size would; leave them out")
    if replay and len(replay) != len(by_hand):
        raise ConfigError(f"--replay: expected one for each of the {len(by_hand)} ZMQ sockets, got {len(replay)}")
    repeats = dict(zip(by_hand, replay, strict=False))
    sources: list[Source] = []
    for name, url in named:
        if url not in by_hand:
            sources += discover(url, worker_id=name, keys=keys)
        elif dp_size > 1:
            repeat = repeats.get(url)
            sources += rank_sources(
                name or url, url, dp_size, replay_endpoint=repeat, topic=topic, bind=bind or None, keys=keys
            )
        else:
            repeat = repeats.get(url)
            sources.append(Source(name or url, url, replay_endpoint=repeat, topic=topic, bind=bind or None, keys=keys))
    return sources


def _named(url: str) -> tuple[str | None, str]:
    """The name that a URL is given, if it is, and the URL."""
    name, equals, rest = url.partition("=")
    return (name, rest) if equals and "://" not in name else (None, url)
