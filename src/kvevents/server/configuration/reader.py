"""From tables, as TOML gives them, to settings; everything that is wrong is found in one go."""

import dataclasses
import difflib
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from kvevents.errors import ConfigError
from kvevents.server.configuration.secret import Secret

_Kind = TypeVar("_Kind")

_SHOWN_CHARACTERS = 60
_CREDENTIALS = re.compile(r"//[^/@\s]*@")
_NAMES: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    Path: "a path",
}


class Key(NamedTuple):
    """A key of a table.

    Attributes:
        name: as it is written.
        field: the field that it fills.
        kind: its type, without None.
        is_required: whether it must be there.
    """

    name: str
    field: str
    kind: Any
    is_required: bool


def keys_of(kind: Any) -> list[Key]:
    """The keys of a table, in the order of the fields of the struct or dataclass that it becomes."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return [
            Key(
                field.name,
                field.name,
                _bare(hints[field.name]),
                field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            )
            for field in dataclasses.fields(kind)
        ]
    return [
        Key(field.encode_name, field.name, _bare(field.type), field.required) for field in msgspec.structs.fields(kind)
    ]


def is_table(kind: Any) -> bool:
    """Whether a key of this type is a table of keys of its own."""
    return isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind))


def table_of_list(kind: Any) -> Any:
    """The type of the tables of a list of tables; None for any other type."""
    if get_origin(kind) in {tuple, list}:
        member = _bare(get_args(kind)[0])
        return member if is_table(member) else None
    return None


def table_of_mapping(kind: Any) -> Any:
    """The type of the tables that a mapping has under names of the user's choice; None for any other type."""
    if get_origin(kind) is dict or get_origin(kind) is Mapping:
        member = _bare(get_args(kind)[1])
        return member if is_table(member) else None
    return None


def expected(kind: Any) -> str:
    """What a value of a type looks like, with the choices where there are some."""
    kind = _bare(kind)
    if kind in _NAMES:
        return _NAMES[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in arguments)
    if origin in {Union, types.UnionType}:
        return " or ".join(expected(argument) for argument in arguments)
    if table_of_list(kind):
        return "tables"
    if origin in {tuple, list, frozenset, set}:
        return f"a list, each {expected(arguments[0])}"
    return "a table" if is_table(kind) or origin is dict else f"a {getattr(kind, '__name__', kind)}"


class Reader:
    """Makes settings of tables.

    Args:
        origins: where a value came from, by its dotted key, if not from the file.
        source: what the file is called in messages.

    Attributes:
        problems: everything that is wrong, in the order found.
    """

    def __init__(self, *, source: str, origins: Mapping[str, str]) -> None:
        self.problems: list[str] = []
        self._source = source
        self._origins = origins

    def read(
        self, kind: type[_Kind], table: object, *, section: str = "", label: str = "", **known: Any
    ) -> _Kind | None:
        """A struct or dataclass of a table; None if something is wrong, which `problems` then says.

        Args:
            kind: what to make.
            table: keys and values.
            section: dotted name of the table; empty for the whole file.
            label: how messages name the table; by default `[section]`.
            known: fields that are known already and do not come from the table.
        """
        label = label or (f"[{section}]" if section else "")
        if not isinstance(table, Mapping):
            self._note(section, label, "", f"expected a table, got {_shown(table)}")
            return None
        before = len(self.problems)
        keys = {key.name: key for key in keys_of(kind) if not key.field.startswith("_")}
        values = dict(known)
        for name in table:
            if name not in keys:
                self._note(section, label, name, _unknown(str(name), keys, is_section=not section))
        for key in keys.values():
            if key.name in table and (table[key.name] is not None or key.is_required):  # JSON has null
                values[key.field] = self._value(key, table[key.name], section, label)
            elif key.name not in table and key.is_required and key.field not in known:
                self._note(section, label, key.name, f"expected {expected(key.kind)}, got nothing")
        if len(self.problems) > before:
            return None
        try:
            return kind(**values)
        except ConfigError as error:
            name, _, text = str(error).partition(": ")
            name = name.rpartition(".")[2]  # some say the whole way to it
            if name in keys:
                self._note(section, label, name, text)
            else:
                self._note(section, label, "", str(error))
            return None

    def _value(self, key: Key, value: object, section: str, label: str) -> Any:
        path = f"{section}.{key.name}" if section else key.name
        if is_table(key.kind):
            return self.read(key.kind, value, section=path)
        if (member := table_of_list(key.kind)) is not None:
            tables = value if isinstance(value, list) else [value]
            return tuple(
                self.read(member, one, section=path, label=f"[[{path}]] {number}{_identity(one)}")
                for number, one in enumerate(tables, 1)
            )
        if (member := table_of_mapping(key.kind)) is not None and isinstance(value, Mapping):
            return {name: self.read(member, one, section=f"{path}.{name}") for name, one in value.items()}
        if key.kind is Secret:
            self._note(
                section, label, key.name, f"expected no secret here: give it by {key.name}_file or the environment"
            )
            return None
        return self._plain(key, value, section, label)

    def _plain(self, key: Key, value: object, section: str, label: str) -> Any:
        try:
            return msgspec.convert(value, key.kind, strict=True, dec_hook=self._hook)
        except msgspec.ValidationError as error:
            place = str(error).partition(" - at `$")[2].rstrip("`")
            reason = "" if str(error).startswith(("Expected", "Invalid enum")) else f" ({error})"
            at = f"{key.name}{place}"
            self._note(section, label, at, f"expected {expected(key.kind)}, got {_shown(value)}{reason}")
            return None

    @staticmethod
    def _hook(kind: type, value: object) -> object:
        if kind is Path and isinstance(value, str) and value:
            return Path(value).expanduser()
        raise msgspec.ValidationError(f"Expected `{kind.__name__}`")

    def _note(self, section: str, label: str, name: str, text: str) -> None:
        path = f"{section}.{name}" if section else name
        origin = self._origins.get(path)
        if origin is not None:
            self.problems.append(f"{origin}: {text}")
            return
        where = " ".join(part for part in (label, name) if part)
        self.problems.append(": ".join(part for part in (self._source, where, text) if part))


def _bare(kind: Any) -> Any:
    """A type without None and annotations."""
    while hasattr(kind, "__metadata__"):
        kind = kind.__origin__
    if get_origin(kind) in {Union, types.UnionType}:
        others = [argument for argument in get_args(kind) if argument is not type(None)]
        if len(others) == 1:
            return _bare(others[0])
    return kind


def _unknown(name: str, keys: Mapping[str, Key], *, is_section: bool) -> str:
    near = difflib.get_close_matches(name, keys, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"there is no such {'section' if is_section else 'key'}; {hint}Known are {', '.join(keys)}"


def _identity(table: object) -> str:
    if isinstance(table, Mapping):
        for name in ("id", "url", "name"):
            value = table.get(name)
            if isinstance(value, str) and "@" not in value and value.isprintable():
                return f" ({value[:_SHOWN_CHARACTERS]})"
    return ""


def without_credentials(text: str) -> str:
    """A text without what stands before the @ of an address in it."""
    return _CREDENTIALS.sub("//***@", text)


def _shown(value: object) -> str:
    text = without_credentials(repr(value))
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
