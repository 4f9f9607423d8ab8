"""A metric: its name, what it says, what to do about it, and its lines in Prometheus' text format."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram", "summary"]

Sample: TypeAlias = tuple[str, float]
"""The text of the labels, as `labels` makes it, and a value."""

NO_LABELS = ""
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Family(NamedTuple):
    """One metric.

    Attributes:
        name: as it stands in queries; a counter's ends in `_total`, a histogram's and summary's sets of lines have
            suffixes of their own.
        kind: what can be asked of it.
        labels: their names.
        meaning: one sentence.
        advice: what to do when it moves.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    advice: str

    def render(self, samples: Iterable[Sample]) -> str:
        """Its lines."""
        name = self.name
        return self._head() + "".join(
            [f"{name}{{{text}}} {value}\n" if text else f"{name} {value}\n" for text, value in samples]
        )

    def render_sums(self, samples: Iterable[tuple[str, float, int]]) -> str:
        """Its lines as a summary: of each the sum and the number of values in it."""
        name = self.name
        return self._head() + "".join(
            [f"{name}_sum{{{text}}} {total}\n{name}_count{{{text}}} {count}\n" for text, total, count in samples]
        )

    def _head(self) -> str:
        return f"# HELP {self.name} {self.meaning}\n# TYPE {self.name} {self.kind}\n"


def labels(**values: str | int) -> str:
    """The text of labels; their values may be anything."""
    return ",".join([f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in values.items()])


def counter(name: str, meaning: str, advice: str, *names: str) -> Family:
    """A sum since the start; `_total` is added to the name."""
    return Family(f"kvevents_{name}_total", "counter", names, meaning, advice)


def histogram(name: str, meaning: str, advice: str) -> Family:
    """Values counted by size; the name ends in their unit."""
    return Family(f"kvevents_{name}", "histogram", (), meaning, advice)


def gauge(name: str, meaning: str, advice: str, *names: str) -> Family:
    """A value as it is now."""
    return Family(f"kvevents_{name}", "gauge", names, meaning, advice)
