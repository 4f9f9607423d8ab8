"""The blocks of docs/deploy.md."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs" / "deploy.md").read_text()

SIMULATED = (
    "engine: simulated",
    "router: engines that name their sockets",
    "check: the settings",
    "router: from a file",
    "check: the same prompt twice",
    "check: what the router thinks",
)
"""Titles of the commands that run as they stand, with the simulated engine as the only one."""


def blocks(language: str) -> list[str]:
    """Every block in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def command(title: str) -> str:
    """The block that begins with this comment."""
    (found,) = [block for block in blocks("bash") if block.startswith(f"# {title}\n")]
    return found
