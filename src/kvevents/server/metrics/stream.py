"""Metrics of `GET /stream`, which pages read."""

from collections.abc import Iterator, Mapping

from kvevents.server.live import StreamCounters
from kvevents.server.metrics.family import NO_LABELS, Family, counter, gauge

READERS = gauge("stream_readers", "Readers of /stream now.", "Open pages; the limit is `stream_clients`.")
COUNTERS: Mapping[str, Family] = {
    field: counter(f"stream_{name}", meaning, advice)
    for field, name, meaning, advice in (
        (
            "connected",
            "connections",
            "Readers since the start.",
            "Far more than readers: something in between cuts them.",
        ),
        ("resumed", "resumptions", "Of those, who were told only what they had missed.", "Short breaks; harmless."),
        (
            "refused",
            "refusals",
            "Readers turned away, since there were too many.",
            "Raise `stream_clients`, or close pages.",
        ),
        (
            "overflows",
            "overflows",
            "Times a reader was so slow that its messages were dropped and it was told everything anew.",
            "Slow lines; pages stay right.",
        ),
        (
            "dropped_messages",
            "dropped_messages",
            "The messages that were dropped.",
            "As kvevents_stream_overflows_total.",
        ),
        ("stalled", "stalls", "Readers let go, since they took nothing any more.", "Pages on machines that sleep."),
    )
}
FAMILIES = (READERS, *COUNTERS.values())


def render(counters: StreamCounters) -> Iterator[str]:
    """Lines of the stream, family by family."""
    yield READERS.render([(NO_LABELS, counters.readers)])
    for field, family in COUNTERS.items():
        yield family.render([(NO_LABELS, getattr(counters, field))])
