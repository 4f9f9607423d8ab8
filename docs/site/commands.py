"""The page of commands: their own help, as it is at the moment."""

from typing import Any

from cyclopts.docs import generate_markdown_docs

from kvevents.cli import COMMANDS, build_app


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """The page's introduction, and every command's help below it."""
    if page.file.src_uri != "commands.md":
        return markdown
    helps = (
        generate_markdown_docs(
            build_app(name)[name], heading_level=2, generate_toc=False, usage_name=f"kvevents {name}"
        )
        for name in COMMANDS
    )
    return "\n\n".join([markdown, *helps])
