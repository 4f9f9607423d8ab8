"""Keys as commands take them: by the path of a file, never themselves."""

from pathlib import Path

from kvevents.transport.security import ConsumerKeys, PublisherKeys


def consumer_keys(path: Path | None) -> ConsumerKeys | None:
    """The keys of an option that names a consumer's private file.

    Raises:
        ConfigError: a file that cannot be used.
    """
    return None if path is None else ConsumerKeys(path)


def publisher_keys(path: Path | None) -> PublisherKeys | None:
    """The keys of an option that names a publisher's private file.

    Raises:
        ConfigError: a file that cannot be used.
    """
    return None if path is None else PublisherKeys(path)
