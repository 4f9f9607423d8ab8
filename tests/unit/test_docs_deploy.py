"""What docs/deploy.md names is there; its commands are run in tests/integration."""

import re
from pathlib import Path

from deploy_page import PAGE, SIMULATED, blocks
from kvevents.server.metrics.reference import SECTIONS

DOCS = Path(__file__).parents[2] / "docs"
RUN = {*SIMULATED, "tokens"}
NOT_RUN = {"engine: SGLang", "engine: vLLM", "systemd", "kubernetes", "upgrade: in Kubernetes, and back"}


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
