"""SGLang's own recorder of KV cache events, its Python files as they are published, on a machine without a GPU.

Of what they import, only the parts that recording and caching run are real; everything else is a stand-in that is never
called.
The native hash is compiled from SGLang's source with SGLang's flags, as its loader would do with PyTorch at hand.
"""

import importlib
import importlib.util
import subprocess
import sys
import sysconfig
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peers import ENVIRONMENT, Unavailable, install
from benchmarks.stand_ins import StandInLoader, StandInModule

VERSION = "0.5.23"
REQUIREMENTS = (f"sglang=={VERSION}", "pybind11==3.0.1")
REAL = (
    "sglang.srt.mem_cache.events",
    "sglang.srt.mem_cache.utils",
    "sglang.srt.mem_cache.radix_cache",
    "sglang.srt.mem_cache.cpp_utils.native_hash",
    "sglang.srt.disaggregation.kv_events",
    "sglang.srt.mem_cache.base_prefix_cache",
    "sglang.srt.mem_cache.cache_init_params",
    "sglang.srt.mem_cache.evict_policy",
    "sglang.srt.mem_cache.rust_tree_core.adapter",
    "sglang.srt.mem_cache.unified_cache.cache_action",
    "sglang.srt.mem_cache.unified_cache.component_type",
    "sglang.srt.mem_cache.unified_cache.unified_tree_core_interface",
)
"""Modules that recording and caching run, and those that lead to them are packages without their `__init__`."""
TREE_CORE = "sglang.srt.mem_cache.rust_tree_core.mem_cache"
"""The tree core in Rust: a library, linked against PyTorch."""


class Recorder:
    """SGLang's recorder over nodes of tokens, and its encoder."""

    def __init__(self, page_size: int) -> None:
        """Raise `Unavailable` where SGLang cannot be had."""
        events, radix, wire = (load(REAL[at]) for at in (0, 2, 4))
        self._recorder = events.KVCacheEventRecorder(enabled=True, page_size=page_size)
        self._radix = radix
        self._batch = wire.KVEventBatch
        self._encode = msgspec.msgpack.Encoder().encode
        self._root = self._node(None, [])
        self._root.hash_value = []

    def node(self, tokens: Any) -> Any:
        """A node below the root whose pages are not hashed yet; SGLang's tokens are an array of 64-bit ids."""
        return self._node(self._root, tokens)

    def _node(self, parent: Any, tokens: Any) -> Any:
        node = self._radix.TreeNode()
        node.parent = parent
        node.key = self._radix.RadixKey(tokens)
        return node

    def record(self, node: Any) -> bytes:
        """Hash the node's pages, record them as stored, and encode the batch."""
        self._recorder.record_store(node)
        data: bytes = self._encode(self._batch(ts=1.0, events=self._recorder.take(), attn_dp_rank=0))
        return data


class _Finder(StandInLoader):
    """Finds the real modules among SGLang's files and makes up all that they import besides."""

    def __init__(self, packages: Path) -> None:
        self._packages = packages

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        if name in REAL:
            file = self._packages.joinpath(*name.split(".")).with_suffix(".py")
            return importlib.util.spec_from_file_location(name, file)
        if name == TREE_CORE:
            library = next(self._packages.joinpath(*name.split(".")).parent.glob("mem_cache.*.so"))
            return importlib.util.spec_from_file_location(name, library)
        root = name.partition(".")[0]
        if root in {"sglang", "pydantic"} or (root == "torch" and not is_real("torch")):
            return self.spec(name)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = super().create_module(spec)
        if spec.name == "sglang.srt.utils.cpp_extension_loader":
            vars(module)["load_extension_with_recovery"] = _compile(self._packages)
        if spec.name == "sglang.srt.mem_cache.rust_tree_core.extension":
            vars(module)["bindings"] = importlib.import_module(TREE_CORE)
        return module


def _compile(packages: Path) -> Callable[..., Any]:
    def load(
        name: str, sources: list[str], extra_cflags: list[str], extra_ldflags: list[str], **_options: Any
    ) -> types.ModuleType:
        library = ENVIRONMENT / f"{name}-{VERSION}.so"
        if not library.exists():
            includes = [f"-I{packages / 'pybind11' / 'include'}", f"-I{sysconfig.get_path('include')}"]
            command = ["g++", *extra_cflags, "-shared", "-fPIC", f"-DTORCH_EXTENSION_NAME={name}", *includes]
            try:
                run = subprocess.run(
                    [*command, *sources, *extra_ldflags, "-o", library], capture_output=True, text=True, check=False
                )
            except FileNotFoundError as error:
                raise Unavailable("SGLang's native hash needs g++, which is not installed") from error
            if run.returncode != 0:
                fault = next((line for line in run.stderr.splitlines() if "error" in line), run.stderr[-200:])
                raise Unavailable(f"SGLang's native hash does not compile here: {fault}")
        spec = importlib.util.spec_from_file_location(name, library)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def is_real(name: str) -> bool:
    """Whether a module is loaded and no stand-in."""
    return not isinstance(sys.modules.get(name), StandInModule | None)


def load(name: str) -> Any:
    """One of the real modules.

    Raises:
        Unavailable: SGLang cannot be had.
    """
    if not any(isinstance(other, _Finder) for other in sys.meta_path):
        sys.meta_path.insert(0, _Finder(install(*REQUIREMENTS, dependencies=False)))
    return importlib.import_module(name)
