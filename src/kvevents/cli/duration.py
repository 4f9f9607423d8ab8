"""Times as people write them: 20ms, 1.5s, 10m."""

import math
import re
from collections.abc import Sequence
from typing import Annotated, TypeAlias

from cyclopts import Parameter, Token

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0}
_FORM = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(us|ms|s|m|h)")


def read_duration(text: str) -> float:
    """Seconds.

    Raises:
        ValueError: it is no number with a unit.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None or not math.isfinite(seconds := float(match[1]) * _UNITS[match[2]]):
        raise ValueError(f"expected a time such as 20ms, 1.5s or 10m, got {text!r}")
    return seconds


def _convert(_type: object, tokens: Sequence[Token]) -> float:
    return read_duration(tokens[0].value)


Duration: TypeAlias = Annotated[float, Parameter(converter=_convert)]
"""Type of a command's argument that is a time: seconds."""
