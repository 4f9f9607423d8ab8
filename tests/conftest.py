"""Options and profiles for every test."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from goldens import Script, script, script_sources

settings.register_profile("fast", max_examples=60, deadline=None)
settings.register_profile("slow", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", metavar="DIR", help="run the golden tests over the SGLang scripts (*.jsonl) in DIR")


def golden_folder(config: pytest.Config) -> Path | None:
    """The folder named by `--golden`, or None for the scripts in the repository."""
    folder = config.getoption("--golden")
    if folder is None:
        return None
    if not Path(folder).is_dir():
        raise pytest.UsageError(f"--golden: expected a folder of *.jsonl scripts, got {folder}")
    return Path(folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`golden_script` runs a test once per script; `@pytest.mark.scripts(prefix, ..., without=[part])` narrows it."""
    if "golden_script" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("scripts")
    prefixes = marker.args if marker else ("",)
    without = marker.kwargs.get("without", ()) if marker else ()
    names = [
        name
        for name in script_sources(golden_folder(metafunc.config))
        if name.startswith(prefixes) and not any(part in name for part in without)
    ]
    metafunc.parametrize("golden_script", names, indirect=True, ids=[name.removesuffix(".jsonl") for name in names])


@pytest.fixture
def golden_script(request: pytest.FixtureRequest) -> Script:
    """One recorded SGLang script."""
    return script(request.param, golden_folder(request.config))
