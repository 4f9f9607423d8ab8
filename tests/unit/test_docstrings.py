"""`help()` says what the stubs say: the extension's public classes and functions carry their first lines."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvevents
from kvevents import _core

STUBS = Path(kvevents.__file__).parent / "_core"
PUBLIC = [name for name in kvevents.__all__ if callable(getattr(kvevents, name))]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_and_their_methods_have_docstrings(name: str) -> None:
    value = getattr(kvevents, name)
    assert inspect.getdoc(value)
    if not inspect.isclass(value) or issubclass(value, Exception):
        return
    bare = [
        member
        for member, attribute in vars(value).items()
        if not member.startswith("_")
        and (
            callable(attribute)
            or isinstance(attribute, property | staticmethod)
            or inspect.isgetsetdescriptor(attribute)
        )
        and not inspect.getdoc(getattr(value, member))
    ]
    assert bare == []


def documented_in_stubs() -> Iterator[tuple[str, str]]:
    """Public names of the extension, dotted, with the first line of their docstring in the stub."""
    for stub in sorted(STUBS.glob("*.pyi")):
        for node in ast.parse(stub.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in PUBLIC:
                members = node.body if isinstance(node, ast.ClassDef) else []
                for prefix, item in [("", node), *((f"{node.name}.", member) for member in members)]:
                    if isinstance(item, ast.ClassDef | ast.FunctionDef) and (said := ast.get_docstring(item)):
                        yield f"{stub.stem}.{prefix}{item.name}", said.partition("\n")[0]


@pytest.mark.parametrize(("name", "said"), list(documented_in_stubs()))
def test_docstrings_begin_as_in_the_stub(name: str, said: str) -> None:
    value: object = _core
    for part in name.split("."):
        value = getattr(value, part)
    begins = (inspect.getdoc(value) or "").partition("\n")[0]
    assert begins.startswith(said), f"write `/// {said}` above {name} in rust/python/src"
