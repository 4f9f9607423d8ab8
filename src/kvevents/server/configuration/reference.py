"""The settings as text: a TOML file with every key, what it is and its default, made from the structs themselves."""

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvevents.server.configuration.reader import Key, expected, is_table, keys_of, table_of_list
from kvevents.server.configuration.secret import Secret
from kvevents.server.configuration.settings import Settings
from kvevents.server.configuration.worker import WorkerSettings

_WIDTH = 118
_ENTRY = re.compile(r"(\w+): (.*)")

HEADER = """\
# Settings of `kvevents serve --config FILE`: every key there is, each with its default. What is commented out has no
# default, or one that depends on the engine. A file needs only what differs.
#
# Flags go before this file; --set section.key=value sets anything. Paths are relative to where the router is started.
# Secrets never stand here: KVEVENTS_CLIENT_TOKEN, KVEVENTS_ADMIN_TOKEN and KVEVENTS_WORKER_API_KEY are in the
# environment, or in files that the same names with _FILE, or the keys below that end in _file, say.
# `kvevents serve --config FILE --check` says what is wrong with a file, and what would run.
"""

_EXAMPLE_WORKER = WorkerSettings(url="http://127.0.0.1:30000")


def attributes_of(kind: type) -> Mapping[str, str]:
    """What the docstring of a class says of each attribute, as one line each."""
    lines = iter((inspect.getdoc(kind) or "").splitlines())
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        if line == "Attributes:":
            break
    for line in lines:
        if line and not line.startswith(" "):
            break
        text = line.strip()
        entry = _ENTRY.fullmatch(text)
        if line.startswith("    ") and not line.startswith("     ") and entry:
            name = entry[1]
            found[name] = entry[2]
        elif name and text:
            found[name] += f" {text}"
    return found


def annotated_defaults() -> str:
    """The whole file."""
    defaults = Settings()
    about = attributes_of(Settings)
    parts = [HEADER]
    for key in keys_of(Settings):
        if table_of_list(key.kind) is not None:
            parts.append(
                _table(f"[[{key.name}]]", table_of_list(key.kind), _EXAMPLE_WORKER, about[key.field], path=key.name)
            )
        else:
            parts.append(
                _table(f"[{key.name}]", key.kind, getattr(defaults, key.field), about[key.field], path=key.name)
            )
    return "\n".join(parts)


def _table(head: str, kind: Any, values: Any, about: str, *, path: str, is_off: bool = False) -> str:
    """A table with its keys, and the tables within it after them; commented out where it is off."""
    said = attributes_of(kind)
    mark = "# " if is_off else ""
    if values is None and not any(key.is_required for key in keys_of(kind)):
        values = kind()
    lines = [*_comment(about), f"{mark}{head}"]
    inner: list[str] = []
    for key in keys_of(kind):
        if key.kind is Secret or key.field.startswith("_"):
            continue
        value = getattr(values, key.field, None)
        text = said.get(key.field, "")
        member = table_of_list(key.kind)
        if member is not None:
            inner.extend(_tables(f"{path}.{key.name}", member, value, text, is_off=is_off))
        elif is_table(key.kind):
            off = is_off or value is None
            inner.append(_table(f"[{path}.{key.name}]", key.kind, value, text, path=f"{path}.{key.name}", is_off=off))
        else:
            lines += ["", *_comment(text), _assignment(key, value) if value is None else mark + _assignment(key, value)]
    return "\n".join(lines) + "\n" + "".join(f"\n{part}" for part in inner)


def _tables(path: str, kind: Any, values: Any, about: str, *, is_off: bool) -> Iterator[str]:
    """The tables of a list: one for each default, or one that shows the keys."""
    for value in values or [None]:
        yield _table(f"[[{path}]]", kind, value, about, path=path, is_off=is_off or value is None)


def _assignment(key: Key, value: Any) -> str:
    if value is None:
        return f"# {key.name} = ...  ({expected(key.kind)})"
    return f"{key.name} = {_toml(value)}"


def _comment(text: str) -> list[str]:
    sentence = text[:1].upper() + text[1:]
    return [f"# {line}" for line in textwrap.wrap(sentence, _WIDTH, break_long_words=False, break_on_hyphens=False)]


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str() | Path():
            text = str(value).replace("\\", "\\\\").replace('"', '\\"')
            return f'"{text}"'
        case Mapping():
            return "{" + ", ".join(f"{_toml(name)} = {_toml(one)}" for name, one in value.items()) + "}"
        case tuple() | list() | frozenset():
            one_line = "[" + ", ".join(_toml(one) for one in value) + "]"
            if len(one_line) <= _WIDTH - 20:
                return one_line
            return "[\n" + "".join(f"    {_toml(one)},\n" for one in value) + "]"
        case _:
            raise TypeError(f"no TOML for {type(value).__name__}")
