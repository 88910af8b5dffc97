"""The Dockerfile and the Compose files against the program and each other."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

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
    assert sorted(words[0] for words in found) == ["serve", "service"]
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
    assert services["tuner"]["environment"]["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
    assert ":5000/" in services["mlflow"]["healthcheck"]["test"][-1]
    image = (DEPLOY / "Dockerfile").read_text()
    assert "EXPOSE 8600" in image
    assert ":8600/readyz" in image.partition("HEALTHCHECK")[2]


def test_no_password_is_written(project: dict[str, Any]) -> None:
    text = json.dumps(project)
    assert re.findall(r"://[^/@\s\"]*:[^/@\s\"]*@", text) == []
    assert project["secrets"]["postgres_password"]["file"].endswith("postgres_password")


def test_services_wait_for_healthy_ones_and_keep_their_data(project: dict[str, Any]) -> None:
    for name, service in project["services"].items():
        assert name in ("token", "tuner") or "healthcheck" in service, name  # tuner: the image has it
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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert f"\nCOPY {package} ./{package}\n" in text
        assert f"!{package}" in ignored
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
