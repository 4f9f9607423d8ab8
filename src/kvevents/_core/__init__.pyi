"""The Rust core of kvevents; use it through the typed modules of the package."""

from kvevents._core import block_pool as block_pool
from kvevents._core import capture as capture
from kvevents._core import coalescing as coalescing
from kvevents._core import hashing as hashing
from kvevents._core import index as index
from kvevents._core import learned as learned
from kvevents._core import lint as lint
from kvevents._core import prompt as prompt
from kvevents._core import recorder as recorder
from kvevents._core import relay as relay
from kvevents._core import routing as routing
from kvevents._core import slots as slots
from kvevents._core import tokens as tokens
from kvevents._core import wire as wire
from kvevents._core import yardstick as yardstick

__version__: str
BUILD_PROFILE: str
"""`release` or `debug`."""
