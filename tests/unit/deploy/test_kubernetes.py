"""The manifests for Kubernetes: valid by the published schemas, and in agreement with the program and each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.test_docs import parse

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.25", "1.37")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def manifests() -> list[dict[str, Any]]:
    return [*documents("tuner.yaml"), *documents("token.yaml")]


def pods() -> dict[str, dict[str, Any]]:
    """Return the specification of each pod by the name of its container."""
    (cluster,) = documents("raycluster.yaml")
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    found = [group["template"]["spec"] for group in groups]
    for document in manifests():
        if document["kind"] == "Pod":
            found.append(document["spec"])
        if document["kind"] == "Deployment":
            found.append(document["spec"]["template"]["spec"])
    return {each["containers"][0]["name"]: each for each in found}


def commands() -> Iterator[list[str]]:
    for pod in pods().values():
        words = pod["containers"][0].get("args", [])
        if words:
            yield words


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_are_valid(version: str) -> None:
    for document in manifests():
        kubernetes_validate.validate(document, version, strict=True)
    for name, spec in pods().items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        kubernetes_validate.validate(pod, version, strict=True)


def test_a_misspelt_field_is_found() -> None:
    (document,) = documents("token.yaml")
    document["spec"]["restartPolice"] = "Never"
    with pytest.raises(kubernetes_validate.ValidationError, match="restartPolice"):
        kubernetes_validate.validate(document, VERSIONS[0], strict=True)


def test_every_command_parses() -> None:
    found = list(commands())
    assert sorted(words[1] for words in found) == ["serve", "token"]
    for words in found:
        assert words[0] == "tuner"
        parse(words[1:])


def test_all_pods_have_the_same_image_with_a_version() -> None:
    (image,) = {pod["containers"][0]["image"] for pod in pods().values()}
    assert re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+", image)
    assert f"-t {image} ." in (ROOT / "docs" / "cluster.md").read_text()


def test_no_pod_is_roots_and_none_gets_the_variables_of_services() -> None:
    uid = int(re.findall(r"--uid (\d+)", (ROOT / "deploy" / "Dockerfile").read_text())[0])
    for pod in pods().values():
        assert pod["enableServiceLinks"] is False  # a Service called tuner would set TUNER_PORT and others
        assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, uid)


def test_passwords_are_references() -> None:
    variables = [each for pod in pods().values() for each in pod["containers"][0].get("env", [])]
    passwords = [each for each in variables if each["name"] == "PGPASSWORD"]
    assert len(passwords) == 2
    assert all(set(each) == {"name", "valueFrom"} for each in passwords)
    assert all(set(each["valueFrom"]) == {"secretKeyRef"} for each in passwords)


def test_the_service_joins_the_cluster_that_it_uses() -> None:
    container = pods()["tuner"]["containers"][0]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    (cluster,) = documents("raycluster.yaml")
    address = f"{cluster['metadata']['name']}-head-svc:6379"
    assert variables["RAY_JOIN"] == address
    assert f"--ray-address={address}" in container["args"]
    assert cluster["spec"]["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"
    worker = pods()["ray-worker"]["containers"][0]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_the_service_reaches_the_pod() -> None:
    by_kind = {document["kind"]: document for document in documents("tuner.yaml")}
    service, deployment = by_kind["Service"]["spec"], by_kind["Deployment"]["spec"]
    assert service["selector"].items() <= deployment["template"]["metadata"]["labels"].items()
    (port,) = pods()["tuner"]["containers"][0]["ports"]
    assert (service["ports"][0]["targetPort"], port["containerPort"]) == (port["name"], 8600)
    claim = by_kind["PersistentVolumeClaim"]["metadata"]["name"]
    claims = [volume.get("persistentVolumeClaim") for volume in pods()["tuner"]["volumes"]]
    assert {"claimName": claim} in claims
