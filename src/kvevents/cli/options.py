"""Numbers that more than one command takes, refused before anything starts."""

import math
from typing import Annotated, TypeAlias

from cyclopts import Parameter, validators

MOST = 2**31 - 1
"""No count of anything is larger, so that none is too large for what it is handed to."""

Count: TypeAlias = Annotated[int, Parameter(validator=validators.Number(gte=1, lte=MOST))]
Rate: TypeAlias = Annotated[float, Parameter(validator=validators.Number(gt=0, lt=math.inf))]
Port: TypeAlias = Annotated[int, Parameter(validator=validators.Number(gte=0, lte=65_535))]
