"""What the site's pages say of files that are not on it: their place in the repository."""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Links out of docs/ become names of files: they work in the repository alone.

    Args:
        markdown: a page.
        page: says where it is.
    """
    folder = posixpath.dirname(page.file.src_uri)

    def named(link: re.Match[str]) -> str:
        text, target = link.groups()
        place = posixpath.normpath(posixpath.join(folder, target))
        if "://" in target or not place.startswith("../"):
            return link.group()
        path = f"`{place.removeprefix('../')}`"
        return path if text.strip("`") in path else f"{text} ({path})"

    return _LINK.sub(named, markdown)
