"""Every code block of README, docs/ and examples/ is valid, and Python that needs no engine runs.

tests/integration/test_docs_blocks.py runs the rest.
"""

import itertools
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvevents
from doc_blocks import PAGES, ROOT, Block, blocks, close, commands, run_python
from kvevents.cli import COMMANDS, build_app
from kvevents.server.configuration.load import load_settings

LANGUAGES = {"", "python", "bash", "toml", "json", "yaml", "nginx"}
PURE = [
    (page, [block for block in group if not block.is_live])
    for page, group in itertools.groupby(blocks("python"), lambda block: block.page)
]
SHELL = [block for block in blocks("bash", "") if "kvevents " in block.text]


def test_blocks_have_a_language_that_is_checked() -> None:
    fences = {line[3:] for page in PAGES for line in page.read_text().splitlines() if line.startswith("```")}
    assert fences <= LANGUAGES


@pytest.mark.parametrize(("page", "of_page"), PURE, ids=[page for page, _ in PURE])
def test_python_runs_and_prints_what_it_says(page: str, of_page: list[Block]) -> None:
    names: dict[str, Any] = {}
    try:
        for block in of_page:
            run_python(block, names)
    finally:
        close(names)


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_are_commands(block: Block) -> None:
    for words in commands(block):
        if not words or words[0].startswith("-"):
            continue
        assert words[0] in COMMANDS
        build_app(words[0]).parse_args(words, exit_on_error=False, print_error=False)


INLINE = [
    (page.name, command)
    for page in PAGES
    for command in re.findall(r"`kvevents ([a-z]+[^`]*)`", page.read_text())
    if command.split()[0] in COMMANDS
]


def test_flags_in_prose_are_flags() -> None:
    """A command in a sentence may have words that stand for something; its flags are real."""
    assert INLINE
    for page, command in INLINE:
        name = command.split()[0]
        arguments = build_app(name)[name].assemble_argument_collection()
        known = {flag for argument in arguments for flag in argument.names} | {"--help"}
        assert set(re.findall(r"(?<!\S)--[a-z-]+", command)) <= known, f"{page}: kvevents {command}"


def test_shell_is_shell() -> None:
    for block in blocks("bash"):
        checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, f"{block}: {checked.stderr}"


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_settings_of_the_router_load(block: Block, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_text("{}")
    (tmp_path / "serve.toml").write_text("".join(_with_model(block.text.splitlines(keepends=True), model)))
    assert tomllib.loads(block.text)
    assert load_settings(tmp_path / "serve.toml", environment={}) is not None


def _with_model(lines: list[str], model: Path) -> list[str]:
    """The lines, with a tokenizer that is there."""
    return [f'path = "{model}"\n' if line.startswith("path = ") and "bytes" not in line else line for line in lines]


@pytest.mark.parametrize("block", blocks("json", "yaml"), ids=str)
def test_data_can_be_read(block: Block) -> None:
    assert json.loads(block.text) if block.language == "json" else list(yaml.safe_load_all(block.text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
        assert "://" in target or (page.parent / target).exists(), target


def test_paths_in_prose_are_there() -> None:
    for page in PAGES:
        for path in re.findall(r"`((?:examples|tests|benchmarks|deploy)/[\w./-]+\w)`", page.read_text()):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_the_reference_has_every_public_name() -> None:
    reference = "".join(page.read_text() for page in PAGES if page.parent.name == "reference")
    missing = [
        name for name in kvevents.__all__ if not re.search(rf"^::: kvevents\.[\w.]*\b{name}$", reference, re.MULTILINE)
    ]
    assert missing == ["__version__"]
