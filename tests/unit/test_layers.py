"""Imports go down: a module imports only layers below its own (or its own package)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvevents

ROOT = Path(kvevents.__file__).parent

LAYERS: list[set[str]] = [
    {"errors", "events", "_interrupts"},
    {"_core"},
    {"wire", "hashing"},
    {"recorder", "coalescing", "index"},
    {"caches", "transport", "routing"},
    {"engine"},
    {"server", "simulation", "integrations", "lint", "diff"},
    {"doctor", "top"},
    {"cli"},
]
RANKS = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}
TOP = {"__init__", "__main__"}
"""Modules of the package itself: they re-export, nothing below imports them."""


def modules() -> list[str]:
    paths = [path for suffix in ("*.py", "*.pyi") for path in ROOT.rglob(suffix)]
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def part_of(module: str) -> str:
    """The architecture's name for a file: its package, or the file itself at the top."""
    return module.partition("/")[0].removesuffix(".pyi").removesuffix(".py")


def imported_parts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Each part of kvevents that a module imports, with the line; imports inside functions count too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package, _, rest = alias.name.partition(".")
                if package == "kvevents":
                    yield node.lineno, rest.partition(".")[0] or "__init__"
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise AssertionError(f"line {node.lineno}: a relative import; write the full name")
            package, _, rest = (node.module or "").partition(".")
            if package == "kvevents" and rest:
                yield node.lineno, rest.partition(".")[0]
            elif package == "kvevents":
                for alias in node.names:
                    yield node.lineno, alias.name if alias.name in RANKS else "__init__"


def violations(module: str, source: str) -> list[str]:
    """What a module imports from its own layer's neighbours or from above."""
    part = part_of(module)
    if part in TOP:
        return []
    return [
        f"{module}:{line} imports {imported}"
        for line, imported in imported_parts(ast.parse(source))
        if imported != part and not (imported in TOP and part == "cli") and RANKS.get(imported, 99) >= RANKS[part]
    ]


@pytest.mark.parametrize("module", modules())
def test_imports_go_down(module: str) -> None:
    assert part_of(module) in RANKS.keys() | TOP, f"{module} is in no layer: give it one here and in ARCHITECTURE.md"
    assert violations(module, (ROOT / module).read_text()) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("errors.py", "from kvevents.events import BlockStored"),
        ("wire.py", "import kvevents.cli"),
        ("index.py", "from kvevents import recorder"),
        ("transport/zmq.py", "def late():\n    from kvevents.engine.server import Server"),
        ("routing/policy.py", "from kvevents import __version__"),
        ("caches/radix.py", "import kvevents.caches.tree, kvevents.transport"),
    ],
)
def test_an_import_that_goes_up_is_found(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("wire.py", "from kvevents._core import wire\nfrom kvevents.errors import WireError"),
        ("caches/radix.py", "from kvevents.caches.tree import Tree"),
        ("cli/demo.py", "from kvevents import __version__"),
        ("__init__.py", "from kvevents.cli import main"),
        ("engine/server.py", "import kvetch\nfrom kveventsx import wire"),
    ],
)
def test_an_import_that_goes_down_is_fine(module: str, source: str) -> None:
    assert violations(module, source) == []
