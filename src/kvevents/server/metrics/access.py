"""Metrics of access: who was turned away."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kvevents.server.metrics.family import NO_LABELS, Family, counter

if TYPE_CHECKING:
    from kvevents.server.service import Service

COUNTERS: Mapping[str, Family] = {
    field: counter(name, meaning, advice)
    for field, name, meaning, advice in (
        (
            "missing_tokens",
            "missing_tokens",
            "Requests without a token where one is needed.",
            "A client that was not given one.",
        ),
        (
            "wrong_tokens",
            "wrong_tokens",
            "Requests with a wrong token, failed logins among them.",
            ("A client with an old token, or somebody who tries: the log of the proxy in front has the addresses."),
        ),
        (
            "limited",
            "limited_requests",
            "Requests refused unread, since their address had sent too many wrong tokens.",
            "Somebody tries tokens; many clients behind one address: name the proxy in `trusted_proxies`.",
        ),
        (
            "foreign_hosts",
            "foreign_hosts",
            "Requests to the router under a name that is not its own.",
            "Add the name to `allowed_hosts`, or a browser is being misled (DNS rebinding).",
        ),
        (
            "foreign_origins",
            "foreign_origins",
            "Requests that a page of somebody else made a browser send.",
            "Refused; who uses the dashboard should know.",
        ),
        ("logins", "logins", "Tokens exchanged for a session of the dashboard.", "People looking."),
        ("logouts", "logouts", "Sessions ended by their owners.", "People who have seen enough."),
        (
            "stale_sessions",
            "stale_sessions",
            "Requests with a session that has expired, has ended or was never ours.",
            "After a restart all are; else somebody tries sessions.",
        ),
    )
}
FAMILIES = tuple(COUNTERS.values())


def render(service: "Service") -> Iterator[str]:
    """Lines of access, family by family."""
    for field, family in COUNTERS.items():
        yield family.render([(NO_LABELS, getattr(service.access.counters, field))])
