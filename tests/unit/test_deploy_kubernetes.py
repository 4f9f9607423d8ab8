"""The manifests for Kubernetes: valid, and about each other and our commands what they say."""

import functools
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest

from deployments import (
    DEPLOY,
    FOLDERS,
    KUBERNETES,
    TOKENS,
    Manifest,
    accepted,
    containers,
    kustomization,
    manifests,
    of_kind,
    workloads,
)
from kvevents.cli import main
from kvevents.errors import ConfigError
from kvevents.server.configuration import Settings
from kvevents.server.configuration.load import SECRETS, load_settings

OLDEST, NEWEST = "1.31", "1.37"
BUILT_IN = [manifest for manifest in manifests() if "monitoring.coreos.com" not in manifest["apiVersion"]]
OURS = {"kvevents", "nats:2.12-alpine"}


def named(manifest: Manifest) -> str:
    return f"{manifest['kind']}-{manifest['metadata']['name']}"


def router() -> Manifest:
    (deployment,) = of_kind("Deployment")
    return deployment


@functools.cache
def settings() -> Settings:
    return load_settings(KUBERNETES / "router" / "serve.toml", environment=TOKENS)


def labels_of(workload: Manifest) -> Mapping[str, str]:
    labels: Mapping[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def selected(labels: Mapping[str, str]) -> list[Manifest]:
    """What has pods with these labels."""
    return [workload for workload in workloads() if labels.items() <= labels_of(workload).items()]


def ports_of(workload: Manifest) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"]
        for container in workload["spec"]["template"]["spec"]["containers"]
        for port in container["ports"]
    }


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("manifest", BUILT_IN, ids=named)
def test_each_manifest_is_one(manifest: dict[str, Any], version: str) -> None:
    assert kubernetes_validate.validate(manifest, version, strict=True) == version


def test_a_wrong_manifest_would_be_found() -> None:
    wrong = {**router(), "spec": {**router()["spec"], "replica": 2}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_kustomization_names_every_file_of_its_folder(folder: str) -> None:
    read = kustomization(folder)
    generated = {name for generator in read.get("configMapGenerator", ()) for name in generator["files"]}
    there = {path.name for path in (KUBERNETES / folder).iterdir()} - {"kustomization.yaml"}
    assert {*read["resources"], *generated} == there


def test_a_namespace_is_for_whoever_applies_them() -> None:
    for manifest in manifests():
        assert "namespace" not in manifest["metadata"]
    assert all("namespace" not in kustomization(folder) for folder in FOLDERS)


def test_selectors_find_what_they_mean() -> None:
    for workload in workloads():
        assert selected(workload["spec"]["selector"]["matchLabels"]) == [workload]
    for service in of_kind("Service"):
        (workload,) = selected(service["spec"]["selector"])
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in ports_of(workload), (service["metadata"]["name"], port)
    for stateful in of_kind("StatefulSet"):
        (service,) = [one for one in of_kind("Service") if one["metadata"]["name"] == stateful["spec"]["serviceName"]]
        assert service["spec"]["clusterIP"] == "None"
    for budget in of_kind("PodDisruptionBudget"):
        assert selected(budget["spec"]["selector"]["matchLabels"]) == [router()]
        assert budget["spec"]["minAvailable"] < router()["spec"]["replicas"]
    (monitor,) = of_kind("ServiceMonitor")
    (watched,) = [
        service
        for service in of_kind("Service")
        if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"].get("labels", {}).items()
    ]
    names = {port["name"] for port in watched["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= names


def test_network_policies_open_ports_that_are_there() -> None:
    for policy in of_kind("NetworkPolicy"):
        (own,) = selected(policy["spec"]["podSelector"]["matchLabels"])
        for rule in policy["spec"]["ingress"]:
            assert {port["port"] for port in rule["ports"]} <= set(ports_of(own))
            for peer in rule.get("from", ()):
                assert selected(peer["podSelector"]["matchLabels"]), policy["metadata"]["name"]


def test_routers_may_reach_every_port_that_their_configuration_names() -> None:
    (policy,) = [one for one in of_kind("NetworkPolicy") if one["metadata"]["name"] == "kvevents-router"]
    to_workers = policy["spec"]["egress"][0]
    assert to_workers["to"][0]["podSelector"]["matchLabels"] == {"kvevents/worker": "true"}
    open_ports = {port["port"] for port in to_workers["ports"]}
    for worker in settings().workers:
        pod, _, service = (urlsplit(worker.url).hostname or "").partition(".")
        (workload,) = [one for one in of_kind("StatefulSet") if one["spec"]["serviceName"] == service]
        assert int(pod.removeprefix(f"{service}-")) < workload["spec"]["replicas"]
        assert worker.id == pod
        ports = ports_of(workload)
        assert urlsplit(worker.url).port == ports["http"]
        assert urlsplit(worker.events).port == ports["relay-info"]
        assert urlsplit(worker.events).hostname == urlsplit(worker.url).hostname
        assert set(ports.values()) <= open_ports
    replicas = sum(
        one["spec"]["replicas"] for one in of_kind("StatefulSet") if one["metadata"]["name"] != "kvevents-log"
    )
    assert len(settings().workers) == replicas


def test_relays_listen_where_their_ports_say() -> None:
    for workload in of_kind("StatefulSet"):
        for container in workload["spec"]["template"]["spec"]["containers"]:
            if container["name"] == "relay":
                told = accepted(container["args"])
                ports = ports_of(workload)
                assert told["endpoint"] == f"tcp://*:{ports['relay-events']}"
                assert told["replay_endpoint"] == f"tcp://*:{ports['relay-replay']}"
                assert told["http"] == f"0.0.0.0:{ports['relay-info']}"
                (mounted,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "relay-log"]
                assert str(told["log"]) == mounted


def test_the_routers_command_is_one_and_its_file_is_mounted() -> None:
    pod = router()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    told = accepted(container["args"])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(told["config"]) == f"{mounts['config']}/serve.toml"
    files = {variable["name"]: variable["value"] for variable in container["env"]}
    assert set(files) == {f"{SECRETS['client_token']}_FILE", f"{SECRETS['admin_token']}_FILE"}
    assert all(path.startswith(mounts["tokens"]) for path in files.values())
    (generator,) = kustomization("router")["configMapGenerator"]
    (config,) = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
    assert (generator["name"], generator["files"]) == (config, ["serve.toml"])


@pytest.mark.parametrize("file", ["kubernetes/router/serve.toml", "systemd/serve.toml"])
def test_the_routers_own_check_finds_nothing(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)
    assert main(["serve", "--config", str(DEPLOY / file), "--check", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["ok"] is True
    assert len(plan["workers"]) == 3


def test_the_routers_file_is_one_and_needs_tokens() -> None:
    settings().security.check_binding(settings().listen)
    assert settings().listen.port == ports_of(router())["http"]
    without = load_settings(KUBERNETES / "router" / "serve.toml", environment={})
    with pytest.raises(ConfigError, match="KVEVENTS_CLIENT_TOKEN"):
        without.security.check_binding(without.listen)


def test_answers_may_end_before_a_pod_is_killed() -> None:
    pod = router()["spec"]["template"]["spec"]
    pause = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > pause + settings().listen.drain_s


def test_being_alive_does_not_depend_on_workers() -> None:
    (container,) = router()["spec"]["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert container["startupProbe"]["httpGet"]["path"] == "/health"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_what_is_ours_runs_restricted() -> None:
    """Kubernetes' standard `restricted` for pods, and a file system that nobody writes to."""
    seen = set()
    for pod, container in containers():
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert all("hostPath" not in volume for volume in pod["volumes"])
        if container["image"] in OURS:
            seen.add(container["image"])
            merged = {**pod["securityContext"], **security}
            assert merged["runAsNonRoot"] is True
            assert merged["runAsUser"] > 0
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["readOnlyRootFilesystem"] is True
            assert "memory" in container["resources"]["limits"]
    assert seen == OURS


def test_engines_say_what_the_router_checks_itself_by() -> None:
    engines = {
        container["name"]: container["args"] for _, container in containers() if container["name"] in {"sglang", "vllm"}
    }
    assert "--enable-cache-report" in engines["sglang"]
    assert "--enable-prompt-tokens-details" in engines["vllm"]
    (vllm,) = [worker for worker in settings().workers if worker.worker_id.startswith("vllm")]
    assert f"--block-size={vllm.block_size}" in engines["vllm"]


def test_every_image_has_an_exact_tag() -> None:
    for folder in FOLDERS:
        tags = {image["name"]: image["newTag"] for image in kustomization(folder).get("images", ())}
        for manifest in manifests(folder):
            for container in manifest["spec"].get("template", {}).get("spec", {}).get("containers", ()):
                name, _, tag = container["image"].partition(":")
                assert (tag or tags[name]) not in {"", "latest"}
