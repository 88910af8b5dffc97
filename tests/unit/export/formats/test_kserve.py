import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.unit.export.formats.readers import container_started, documents, run_line, served
from tuner.errors import SettingError
from tuner.testing.exporter import SUFFIX, FormatContract, Started, deployment, instances

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
