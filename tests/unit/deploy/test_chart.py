"""The Helm chart: Helm renders it, Kubernetes' schemas accept it, and it agrees with the program and the image."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import tuner
from tests.programs import needed
from tests.test_docs import parse

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "tuner"
VERSIONS = ("1.30", "1.31", "1.32", "1.33", "1.34")
IMAGE: dict[str, Any] = {"image": {"repository": "registry.example/tuner"}}
FULL: dict[str, Any] = IMAGE | {
    "postgresql": {
        **{"host": "db.example", "existingSecret": "db", "passwordKey": "pw"},
        **{"sslmode": "verify-full", "caSecret": "db-ca", "caKey": "root.pem"},
    },
    "mlflow": {"trackingUri": "http://mlflow:5000"},
    "service": {"arguments": ["--audit-days", "30"], "envFrom": [{"secretRef": {"name": "webhooks"}}]},
    "ingress": {"enabled": True, "className": "nginx", "host": "tuner.example", "tlsSecret": "tuner-tls"},
    "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}]},
    "ray": {"workers": {"replicas": 2, "gpus": 4, "modelsClaim": "models", "nodeSelector": {"card": "h200"}}},
    "huggingface": {"existingSecret": "hub"},
}
SMALL: dict[str, Any] = IMAGE | {
    "ray": {"create": False},
    "backup": {"enabled": False},
    "token": {"create": False},
    "networkPolicy": {"enabled": False},
}
VALUES = {"defaults": IMAGE, "full": FULL, "small": SMALL}

pytestmark = pytest.mark.program("helm")


def helm(*words: str, values: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    command = [str(needed("helm")), *words, "--values", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True)


def rendered(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    done = helm("template", "tuner", str(CHART), values=values)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def named(documents: list[dict[str, Any]], kind: str, name: str = "tuner") -> dict[str, Any]:
    (found,) = (each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def pods(documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the template of each pod."""
    for document in documents:
        spec = document["spec"]
        if document["kind"] == "RayCluster":
            yield from (group["template"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]))
        elif document["kind"] == "CronJob":
            yield spec["jobTemplate"]["spec"]["template"]
        elif "template" in spec:
            yield spec["template"]


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_helm_finds_nothing_to_mend(values: dict[str, Any]) -> None:
    done = helm("lint", "--strict", str(CHART), values=values)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_schemas_accept_every_document(values: dict[str, Any], version: str) -> None:
    documents = rendered(values)
    for document in documents:
        if document["kind"] != "RayCluster":
            kubernetes_validate.validate(document, version, strict=True)
    for template in pods(documents):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, version, strict=True)


def test_a_misspelt_field_is_found() -> None:
    job = named(rendered(IMAGE), "Job", "tuner-token")
    job["spec"]["template"]["spec"]["restartPolice"] = "Never"
    with pytest.raises(kubernetes_validate.ValidationError, match="restartPolice"):
        kubernetes_validate.validate(job, VERSIONS[0], strict=True)


@pytest.mark.parametrize(
    ("values", "named_value"),
    [
        ({}, "/image/repository"),
        (IMAGE | {"ingress": {"enabled": True, "host": "a.example"}}, "/ingress/tlsSecret"),
        (IMAGE | {"postgresql": {"pasword": "x"}}, "pasword"),
        (IMAGE | {"postgresql": {"sslmode": "verify-ca"}}, "/postgresql/caSecret"),
        (IMAGE | {"ray": {"workers": {"gpus": 0}}}, "/ray/workers/gpus"),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], named_value: str) -> None:
    done = helm("template", "tuner", str(CHART), values=values)
    assert done.returncode != 0
    assert named_value in done.stderr


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_service_s_command_parses(values: dict[str, Any]) -> None:
    (container,) = named(rendered(values), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["tuner", "serve"]
    parse(container["args"][1:])


def test_a_second_installation_on_one_database_keeps_the_admin_s_token(tmp_path: Path) -> None:
    """The Job's own command runs twice, on another database."""
    job = named(rendered(IMAGE), "Job", "tuner-token")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    *words, storage = container["args"]
    assert storage == "postgresql://tuner@postgres:5432/tuner?sslmode=prefer"
    words.append(f"sqlite:///{tmp_path}/tuner.db")
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    first, second = (subprocess.run(words, env=path, capture_output=True, text=True, timeout=300) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert re.fullmatch(r"tnr_[0-9a-f]{64}\n", first.stdout)
    assert second.stdout.startswith("the database has the token admin already")


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_no_pod_is_roots_and_each_has_a_read_only_root(values: dict[str, Any]) -> None:
    uid = int(re.findall(r"--uid (\d+)", (ROOT / "deploy" / "Dockerfile").read_text())[0])
    for pod in pods(rendered(values)):
        spec, (container,) = pod["spec"], pod["spec"]["containers"]
        assert spec["enableServiceLinks"] is False
        assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["runAsUser"]) == (True, uid)
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_passwords_and_tokens_are_references() -> None:
    variables = [each for pod in pods(rendered(FULL)) for each in pod["spec"]["containers"][0].get("env", [])]
    secret = [each for each in variables if each["name"] in ("PGPASSWORD", "HF_TOKEN")]
    assert [each["name"] for each in secret].count("PGPASSWORD") == 3, "of the service, the token and the backup"
    assert {each["valueFrom"]["secretKeyRef"]["name"] for each in secret} == {"db", "hub"}


def test_every_client_of_the_database_has_its_certificate() -> None:
    """libpq refuses verify-full without one."""
    found = [pod["spec"] for pod in pods(rendered(FULL)) if "PGPASSWORD" in str(pod["spec"])]
    assert len(found) == 3, "the service, the token and the backup"
    for spec in found:
        (container,), (volume,) = spec["containers"], [each for each in spec["volumes"] if "secret" in each]
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
        assert volume["secret"] == {"secretName": "db-ca", "items": [{"key": "root.pem", "path": "ca.crt"}]}
        place = {"name": "PGSSLROOTCERT", "value": f"{mount['mountPath']}/ca.crt"}
        assert place in container["env"]
    assert "PGSSLROOTCERT" not in str(rendered(IMAGE))


def test_all_pods_but_the_backup_have_the_image_of_this_version() -> None:
    images = {pod["spec"]["containers"][0]["image"] for pod in pods(rendered(IMAGE))}
    assert images == {f"registry.example/tuner:{tuner.__version__}", "postgres:17.6-bookworm"}


def test_the_service_joins_the_cluster_that_it_uses() -> None:
    documents = rendered(FULL)
    (container,) = named(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    cluster = named(documents, "RayCluster", "tuner-ray")["spec"]
    assert "--ray-address=tuner-ray-head-svc:6379" in container["args"]
    assert {"name": "RAY_JOIN", "value": "tuner-ray-head-svc:6379"} in container["env"]
    (workers,) = cluster["workerGroupSpecs"]
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (2, 2, 2)
    spec = workers["template"]["spec"]
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert (spec["nodeSelector"], spec["tolerations"][0]["key"]) == ({"card": "h200"}, "nvidia.com/gpu")
    alone = named(rendered(SMALL), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert [word for word in alone["args"] if "ray" in word] == []


def test_the_ingress_and_the_policies_reach_the_service_and_no_other_pod() -> None:
    documents = rendered(FULL)
    service, ingress = named(documents, "Service")["spec"], named(documents, "Ingress")["spec"]
    (pod,) = (pod for pod in pods(documents) if service["selector"].items() <= pod["metadata"]["labels"].items())
    (port,) = pod["spec"]["containers"][0]["ports"]
    assert (service["ports"][0]["targetPort"], port["containerPort"]) == (port["name"], 8600)
    assert ingress["tls"] == [{"hosts": ["tuner.example"], "secretName": "tuner-tls"}]
    open_to_others = named(documents, "NetworkPolicy", "tuner-service")["spec"]
    assert open_to_others["podSelector"]["matchLabels"] == service["selector"]
    assert open_to_others["ingress"] == [{"ports": [{"port": "http"}], "from": FULL["networkPolicy"]["from"]}]
    among = named(documents, "NetworkPolicy", "tuner-release")["spec"]
    for each in pods(documents):
        assert among["podSelector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    assert among["ingress"] == [{"from": [{"podSelector": among["podSelector"]}]}]


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (tuner.__version__, tuner.__version__)
