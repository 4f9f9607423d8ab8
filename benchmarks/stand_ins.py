"""Stand-ins for what real modules of an engine import and never call here: an engine without its dependencies."""

import importlib.abc
import types
from collections.abc import MutableSequence
from importlib.machinery import ModuleSpec
from typing import Any


class _StandIn(type):
    """A class for whatever is asked of it."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __call__(cls, *arguments: Any, **_options: Any) -> Any:
        # As a decorator it leaves alone what it decorates.
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else cls

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


def stand_in(name: str) -> Any:
    """Something that can be a base, a decorator, a type or a value, and does nothing."""
    return type.__call__(_StandIn, name, (), {})


class StandInModule(types.ModuleType):
    """A module that has whatever is asked of it."""

    __path__: MutableSequence[str] = []  # noqa: RUF012 - what the import system expects of a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)


class StandInLoader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes up modules; which ones are real, a finder below it says."""

    def spec(self, name: str) -> ModuleSpec:
        """Of a module to be made up."""
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """A stand-in."""
        return StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing."""
