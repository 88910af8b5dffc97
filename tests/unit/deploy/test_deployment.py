"""The Dockerfile, the Compose files and the manifests for Kubernetes against the program and each other."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.test_docs import parse

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
FILES = [("compose.yaml",), ("compose.yaml", "compose.gpu.yaml")]
OTHERS = {
    "POSTGRES_USER",
    "POSTGRES_DB",
    "POSTGRES_PASSWORD_FILE",
    "PGPASSWORD_FILE",
    "HF_HOME",
    "HF_TOKEN",
    "RAY_JOIN",
}
"""Variables of PostgreSQL's image, of entrypoint.sh, and of Hugging Face's library."""


def merged(*files: str) -> dict[str, Any]:
    """Return what Docker Compose itself makes of the files, every profile included."""
    compose = Path(sys.executable).parent / "docker-compose"
    names = [word for name in files for word in ("-f", str(DEPLOY / name))]
    command = [str(compose), *names, "--profile", "*", "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module", params=FILES, ids="+".join)
def project(request: pytest.FixtureRequest) -> dict[str, Any]:
    return merged(*request.param)


def tuner_commands(project: dict[str, Any]) -> list[list[str]]:
    commands = [service.get("command") or [] for service in project["services"].values()]
    return [words[1:] for words in commands if words[:1] == ["tuner"]]


def test_every_tuner_command_parses(project: dict[str, Any]) -> None:
    found = tuner_commands(project)
    assert sorted(words[0] for words in found) == ["serve", "token"]
    for words in found:
        parse(words)
    image = json.loads(re.findall(r"^CMD (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)[0])
    assert image[0] == "tuner"
    parse(image[1:])


def test_a_misspelt_option_is_found(project: dict[str, Any]) -> None:
    (serve,) = (words for words in tuner_commands(project) if words[0] == "serve")
    with pytest.raises(Exception, match="--portt"):
        parse([word.replace("--port", "--portt") for word in serve])


def test_every_variable_is_one_that_a_program_reads(project: dict[str, Any]) -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "tuner").rglob("*.py"))
    names = {name for service in project["services"].values() for name in service.get("environment") or {}}
    assert {name for name in names - OTHERS if f'"{name}"' not in source} == set()
    entrypoint = (DEPLOY / "entrypoint.sh").read_text()
    assert all(name in entrypoint for name in ("PGPASSWORD_FILE", "RAY_JOIN"))


def test_ports_are_open_to_this_machine_only_and_agree(project: dict[str, Any]) -> None:
    services = project["services"]
    opened = {name: service.get("ports") or [] for name, service in services.items()}
    assert {port["host_ip"] for ports in opened.values() for port in ports} == {"127.0.0.1"}
    for name, option in (("tuner", "--port=8600"), ("mlflow", "--port=5000")):
        port = option.partition("=")[2]
        assert option in services[name]["command"]
        assert [(str(each["target"]), each["published"]) for each in opened[name]] == [(port, port)]
        assert f":{port}/" in services[name]["healthcheck"]["test"][-1]
    assert services["tuner"]["environment"]["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
    assert "EXPOSE 8600" in (DEPLOY / "Dockerfile").read_text()


def test_no_password_is_written(project: dict[str, Any]) -> None:
    text = json.dumps(project)
    assert re.findall(r"://[^/@\s\"]*:[^/@\s\"]*@", text) == []
    assert project["secrets"]["postgres_password"]["file"].endswith("postgres_password")


def test_services_wait_for_healthy_ones_and_keep_their_data(project: dict[str, Any]) -> None:
    for name, service in project["services"].items():
        assert name in ("token", "ray-worker") or "healthcheck" in service, name
        for needed, how in (service.get("depends_on") or {}).items():
            assert how["condition"] == "service_healthy"
            assert "healthcheck" in project["services"][needed]
        for volume in service.get("volumes") or []:
            assert volume["type"] == "volume"
            assert volume["source"] in project["volumes"]


def test_the_cluster_is_the_one_that_the_service_uses() -> None:
    services = merged(*FILES[1])["services"]
    assert "--ray-address=ray-head:6379" in services["tuner"]["command"]
    assert services["tuner"]["environment"]["RAY_JOIN"] == "ray-head:6379"
    assert "--port=6379" in services["ray-head"]["command"]
    assert "--address=ray-head:6379" in services["ray-worker"]["command"]
    base = merged(*FILES[0])["services"]["tuner"]["command"]
    assert [word for word in services["tuner"]["command"] if word not in base] == ["--ray-address=ray-head:6379"]


def test_the_image_is_pinned_and_not_roots() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE_IMAGE=python:3\.\d+\.\d+-slim-\w+$", text, re.MULTILINE)
    assert re.search(r"^ARG UV_VERSION=\d+\.\d+\.\d+$", text, re.MULTILINE)
    assert re.findall(r"^USER (\w+)$", text, re.MULTILINE)[-1] == re.findall(r"--uid (\d+)", text)[0] != "0"
    for source in re.findall(r"^COPY (?:--\S+ )?(.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in source.split())


def test_the_entrypoint_reads_the_password_and_runs_the_command(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("p w\n")
    variables = {"PATH": "/usr/bin:/bin", "PGPASSWORD_FILE": str(tmp_path / "secret")}
    command = [str(DEPLOY / "entrypoint.sh"), "sh", "-c", 'printf %s "$PGPASSWORD|$1"', "-", "a b"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "p w|a b"


def test_the_entrypoint_joins_the_ray_cluster_before_the_command(tmp_path: Path) -> None:
    (tmp_path / "ray").write_text('#!/bin/sh\nprintf "ray %s;" "$*"\n')
    (tmp_path / "ray").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RAY_JOIN": "head:6379"}
    done = subprocess.run(
        [str(DEPLOY / "entrypoint.sh"), "echo", "served"], env=variables, capture_output=True, text=True
    )
    assert done.stdout == "ray start --address=head:6379 --num-cpus=0 --num-gpus=0;served\n"


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
