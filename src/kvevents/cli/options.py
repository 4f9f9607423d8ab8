"""Numbers as commands take them, refused before anything starts."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter, Token, convert, validators

MOST = 2**31 - 1
"""No count of anything is larger, so that none is too large for what it is handed to."""

Count: TypeAlias = Annotated[int, Parameter(validator=validators.Number(gte=1, lte=MOST))]
Rate: TypeAlias = Annotated[float, Parameter(validator=validators.Number(gt=0, lt=math.inf))]
Port: TypeAlias = Annotated[int, Parameter(validator=validators.Number(gte=0, lte=65_535))]


def read_value(wanted: Any, tokens: Sequence[Token]) -> Any:
    """What a flag's words mean, where half a worker is no number of workers: cyclopts would round it.

    Raises:
        ValueError: a fraction where a whole number is wanted.
    """
    value = convert(wanted, tokens)
    if wanted is int and "." in tokens[0].value and float(tokens[0].value) != value:
        raise ValueError(f"expected a whole number, got {tokens[0].value}")
    return value
