from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given

from tests.unit.export.formats.readers import container_started, documents, served
from tuner.errors import SettingError
from tuner.testing.exporter import (
    EXAMPLES,
    SUFFIX,
    TEXTS,
    FormatContract,
    Started,
    deployment,
    instances,
)

VERSIONS = ("1.25.0", "1.37.0")


def validated(path: Path, versions: tuple[str, ...] = VERSIONS) -> list[dict[str, Any]]:
    """Return the documents of a file, which fit Kubernetes' schemas without an unknown field."""
    found = documents(path)
    for document in found:
        for version in versions:
            kubernetes_validate.validate(document, version, strict=True)
    return found


class TestKubernetes(FormatContract):
    name = "kubernetes"

    def container(self, path: Path) -> dict[str, Any]:
        (made,) = (each for each in documents(path) if each["kind"] == "Deployment")
        (container,) = made["spec"]["template"]["spec"]["containers"]
        assert isinstance(container, dict)
        return container

    def read(self, path: Path, variables: Mapping[str, str]) -> Started:
        container = self.container(path)
        assert container["command"] == ["vllm", "serve"]
        found = container_started(container, variables)
        return Started(served(found.words), found.environment)

    def test_it_fits_the_schemas(self, tmp_path: Path) -> None:
        made = deployment(argv=("--api-key", "${MY_KEY}"), references=frozenset({"MY_KEY"}), model="/data/m")
        kinds = [document["kind"] for document in validated(self.write(tmp_path, made))]
        assert kinds == ["PersistentVolumeClaim", "Deployment", "Service"]

    @EXAMPLES
    @given(text=TEXTS)
    def test_odd_names_fit_rfc_1035(self, tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
        claim, made, service = documents(self.write(tmp_path_factory.mktemp("k"), deployment(study=text)))
        for each in (claim, made, service):
            name = each["metadata"]["name"]
            assert name[:1].isalpha()
            assert name[-1].isalnum()
            assert len(name) <= 63
            assert name.isascii()
            assert name == name.lower()
            assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")

    @pytest.mark.parametrize(
        ("study", "name"),
        [
            ("vllm", "vllm-server"),
            ("My study_v2.1", "my-study-v2-1-server"),
            ("70b", "study-70b-server"),
            ("…", "study-server"),
        ],
    )
    def test_the_service_is_never_called_vllm(self, tmp_path: Path, study: str, name: str) -> None:
        *_, service = documents(self.write(tmp_path, deployment(study=study)))
        assert service["metadata"]["name"] == name

    @pytest.mark.parametrize(("startup_s", "failures"), [(None, 60), (42.0, 60), (149.0, 60), (200.1, 81)])
    def test_the_start_probe_allows_four_times_the_measured_start(
        self, tmp_path: Path, startup_s: float | None, failures: int
    ) -> None:
        probe = self.container(self.write(tmp_path, deployment(startup_s)))["startupProbe"]
        assert (probe["periodSeconds"], probe["failureThreshold"]) == (10, failures)
        assert probe["httpGet"] == {"path": "/health", "port": 8000}

    def test_gpus_shared_memory_cache_user_and_links(self, tmp_path: Path) -> None:
        made = deployment(argv=("-tp", "2", "--pipeline-parallel-size=2"))
        path = self.write(tmp_path, made)
        container = self.container(path)
        pod = documents(path)[1]["spec"]["template"]["spec"]
        # one API server, one engine and four workers
        assert container["resources"] == {
            "limits": {"nvidia.com/gpu": "4"},
            "requests": {"cpu": "6", "memory": "24Gi"},
        }
        assert container["securityContext"]["runAsNonRoot"] is True
        volumes = {each.pop("name"): each for each in pod["volumes"]}
        assert volumes["dshm"] == {"emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}
        assert volumes["cache"] == {"persistentVolumeClaim": {"claimName": "demo-server-cache"}}
        assert pod["enableServiceLinks"] is False
        assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "Tesla-T4"}
        assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]

    def test_a_cpu_has_its_weights_and_cache_in_the_memory_that_it_requests(self, tmp_path: Path) -> None:
        made = replace(deployment(device="cpu", environment={"VLLM_CPU_KVCACHE_SPACE": "40"}), weights_gib=14.5)
        path = self.write(tmp_path, made)
        # three processes of 4 GiB, 14.5 GiB of weights and 40 GiB of KV cache
        assert self.container(path)["resources"] == {"requests": {"cpu": "3", "memory": "67Gi"}}
        assert "nodeSelector" not in path.read_text()

    def test_offloaded_blocks_are_in_shared_memory_and_requested(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, deployment(argv=("--kv-offloading-size", "32", "-dp", "2")))
        pod = next(each for each in documents(path) if each["kind"] == "Deployment")["spec"]["template"]["spec"]
        size = next(each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if each["name"] == "dshm")
        # two engines of 32 GiB; one API server, two engines, two workers and a coordinator of 4 GiB
        assert (size, pod["containers"][0]["resources"]["requests"]["memory"]) == ("80Gi", "88Gi")

    def test_instances_are_replicas_with_a_cache_each(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, instances(2, "-tp", "2"))
        made, service = validated(path)
        assert (made["spec"]["replicas"], service["kind"]) == (2, "Service")
        assert self.container(path)["resources"]["limits"] == {"nvidia.com/gpu": "2"}
        volume = made["spec"]["template"]["spec"]["volumes"][0]
        assert volume["ephemeral"]["volumeClaimTemplate"]["spec"]["accessModes"] == ["ReadWriteOnce"]

    def test_suffix_decoding_is_installed_before_the_server_starts(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, deployment(argv=SUFFIX, environment={"PYTHONPATH": "/own"}))
        validated(path)
        pod = next(each for each in documents(path) if each["kind"] == "Deployment")["spec"]["template"]["spec"]
        (step,) = pod["initContainers"]
        folder = "/cache/packages/arctic-inference-0.1.1"
        assert step["command"][-2:] == [folder, "arctic-inference==0.1.1"]
        assert step["volumeMounts"] == [{"name": "cache", "mountPath": "/cache"}]
        found = self.read(path, {}).environment
        assert found["PYTHONPATH"] == f"{folder}:/own"

    def test_the_token_of_a_hub_is_optional(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, deployment())
        assert "HF_TOKEN" not in self.read(path, {}).environment
        assert self.read(path, {"HF_TOKEN": "t"}).environment["HF_TOKEN"] == "t"
        assert "HF_TOKEN" not in self.text(tmp_path, deployment(model="/data/m"))

    def test_secrets_come_from_a_secret(self, tmp_path: Path) -> None:
        words = ("--api-key", "${MY_KEY}")
        variables = {"HF_TOKEN": "${HF_TOKEN}"}
        made = deployment(argv=words, environment=variables, references=frozenset({"MY_KEY", "HF_TOKEN"}))
        container = self.container(self.write(tmp_path, made))
        assert container["args"][1:3] == ["--api-key", "$(MY_KEY)"]
        assert container["env"][:2] == [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": "demo-server-secrets", "key": name}}}
            for name in ("HF_TOKEN", "MY_KEY")
        ]
        assert [each["name"] for each in container["env"]].count("HF_TOKEN") == 1

    @pytest.mark.parametrize("folder", ["./m", "/data/../m", "/data/a:b"])
    def test_a_folder_that_no_volume_can_have_is_refused(self, tmp_path: Path, folder: str) -> None:
        with pytest.raises(SettingError, match="a volume cannot be mounted at the model's folder"):
            self.write(tmp_path, deployment(model=folder))
