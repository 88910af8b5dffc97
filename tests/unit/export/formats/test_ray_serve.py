import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ray._private.utils import update_envs
from ray.llm._internal.serve.core.configs.llm_config import LLMConfig
from ray.serve.schema import ServeDeploySchema

from tests.unit.export.formats.readers import documents
from tuner.errors import SettingError
from tuner.export.deployment import arguments_of
from tuner.testing.exporter import SECRET, SUFFIX, FormatContract, Started, deployment, instances


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
        with pytest.MonkeyPatch.context() as patch:
            for name in list(os.environ):
                patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
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
