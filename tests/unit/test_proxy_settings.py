"""Limits of the proxy."""

from typing import Any

import pytest

from kvevents.errors import ConfigError
from kvevents.server.proxy.settings import ProxySettings


@pytest.mark.parametrize("name", [name for name in ProxySettings.__struct_fields__ if name.endswith(("_s", "_bytes"))])
def test_limits_are_positive(name: str) -> None:
    values: tuple[Any, ...] = (0, -1, float("nan"))
    for value in values:
        with pytest.raises(ConfigError, match=f"^{name}: expected more than 0"):
            ProxySettings(**{name: value})


def test_nobody_may_wait_where_there_is_no_queue() -> None:
    assert ProxySettings(max_waiting=0).max_waiting == 0
    with pytest.raises(ConfigError, match="max_waiting"):
        ProxySettings(max_waiting=-1)


@pytest.mark.parametrize("path", ["/generate", "v1/completions", "/v1/models", "/v1/models/a"])
def test_only_paths_of_engines_are_passed_on(path: str) -> None:
    with pytest.raises(ConfigError, match="paths"):
        ProxySettings(paths=(path,))


def test_unknown_models_are_refused_or_passed() -> None:
    with pytest.raises(ConfigError, match="unknown_models: expected refuse or pass"):
        ProxySettings(unknown_models="maybe")
