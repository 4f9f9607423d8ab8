"""What `deploy/` holds, read for the tests."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from kvevents.cli import build_app

DEPLOY = Path(__file__).parents[1] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
FOLDERS = sorted(path.name for path in KUBERNETES.iterdir())

Manifest = Mapping[str, Any]

TOKENS = {"KVEVENTS_CLIENT_TOKEN": "for-the-tests", "KVEVENTS_ADMIN_TOKEN": "for-the-tests-too"}


def kustomization(folder: str) -> Manifest:
    """What a folder is made of."""
    read: Manifest = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())
    return read


@functools.cache
def manifests(*folders: str) -> list[Manifest]:
    """Every object of these folders, of all when none is named."""
    return [
        manifest
        for folder in folders or FOLDERS
        for path in sorted((KUBERNETES / folder).glob("*.yaml"))
        if path.name != "kustomization.yaml"
        for manifest in yaml.safe_load_all(path.read_text())
    ]


def of_kind(*kinds: str) -> list[Manifest]:
    """Every object of these kinds."""
    return [manifest for manifest in manifests() if manifest["kind"] in kinds]


def workloads() -> list[Manifest]:
    """Everything that has pods."""
    return of_kind("Deployment", "StatefulSet")


def containers() -> Iterator[tuple[Manifest, Manifest]]:
    """The specification of each pod with each of its containers."""
    for workload in workloads():
        pod = workload["spec"]["template"]["spec"]
        for container in pod["containers"]:
            yield pod, container


def accepted(arguments: list[str]) -> Mapping[str, Any]:
    """What our command line makes of arguments; it raises for those that it does not take."""
    app = build_app(arguments[0])
    _, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    return {"": bound.args, **bound.kwargs}
