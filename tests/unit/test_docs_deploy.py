"""What docs/deploy.md shows in settings and names is there; its commands are run in tests/integration."""

import re
import tomllib
from pathlib import Path

import pytest

from deploy_page import PAGE, SIMULATED, blocks
from kvevents.server.configuration.load import load_settings
from kvevents.server.metrics.reference import SECTIONS

DOCS = Path(__file__).parents[2] / "docs"
TOML = blocks("toml")
RUN = {*SIMULATED, "tokens"}
NOT_RUN = {"engine: SGLang", "engine: vLLM", "systemd", "kubernetes", "upgrade: in Kubernetes, and back"}


@pytest.mark.parametrize("number", range(len(TOML)))
def test_settings_load(number: int, tmp_path: Path) -> None:
    model = tmp_path / "my-model"
    model.mkdir()
    (model / "tokenizer.json").write_text("{}")
    file = tmp_path / "serve.toml"
    file.write_text(TOML[number].replace("/models/my-model", str(model)))
    settings = load_settings(file, environment={})
    assert tomllib.loads(TOML[number])
    assert settings is not None


def test_every_command_is_run_or_said_not_to_be() -> None:
    titles = {block.partition("\n")[0].removeprefix("# ") for block in blocks("bash")}
    assert titles == RUN | NOT_RUN


def test_files_and_metrics_that_are_named_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (DOCS / target).exists(), target
    for path in re.findall(r"deploy/[\w./@-]+\w", "\n".join(blocks("bash"))):
        assert (DOCS.parent / path).exists(), path
    names = {family.name for families in SECTIONS.values() for family in families}
    for name in re.findall(r"(?:kvevents|process)_[a-z_]+", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)):
        assert name in names, name
