"""The longest request that a server accepts, by the model and by the server's own flags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.contracts.space_contract import QWEN
from tests.unit.search_spaces.test_memory import CONFIG_7B
from tuner.errors import SettingError
from tuner.settings.study import StudySettings
from tuner.study.specification.find_model import longest_context
from tuner.study.specification.plan import plan_study

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("engine", "line", "tokens"),
    [
        ("vllm", "", 32768),
        ("vllm", "--max-model-len 131072", 131072),
        ("vllm", "--max_model_len=16k", 16000),
        ("vllm", "--max-model-len 600 --max-model-len 700", 700),
        ("vllm", "--max-model-len auto", 32768),
        ("vllm", "--max-model-len -1", 32768),
        ("vllm", '--hf-overrides {"max_position_embeddings":65536}', None),
        ("sglang", "--context-length 65536", 65536),
        ("sglang", "--context-length 600", 32768),
        ("sglang", '--json-model-override-args {"a":1}', None),
        ("llama.cpp", "-c 65536", 65536),
        ("llama.cpp", "--ctx-size 0", 32768),
        ("openai", "--max-model-len 131072", 32768),
    ],
)
def test_a_server_s_flag_decides(engine: str, line: str, tokens: int | None) -> None:
    assert longest_context(QWEN, engine, line.split()) == tokens


def test_an_unknown_model_has_the_flag_s_context() -> None:
    assert longest_context(None, "vllm", ["--max-model-len", "4096"]) == 4096
    assert longest_context(None, "vllm", []) is None


def plan(folder: Path, tokens: int, *arguments: str, **config: object) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG_7B, "model_type": "qwen2", **config}))
    load = {"input_len": tokens, "output_len": 100, "max_concurrency": 2, "num_prompts": 4}
    plan_study(StudySettings(model=str(folder), server_arguments=arguments, **load))  # type: ignore[arg-type]


def test_a_measured_study_sends_what_yarn_allows(tmp_path: Path) -> None:
    plan(tmp_path, 60_000, rope_scaling=YARN)
    plan(tmp_path, 60_000, "--max-model-len", "131072", rope_scaling=YARN)
    plan(tmp_path, 60_000, "--max-model-len", "131072")  # vLLM decides, by its version and environment
    with pytest.raises(SettingError, match=r"131000 \+ 100 tokens exceed the model's context of 131072"):
        plan(tmp_path, 131_000, rope_scaling=YARN)
    with pytest.raises(SettingError, match=r"60000 \+ 100 tokens exceed the model's context of 32768"):
        plan(tmp_path, 60_000)
    with pytest.raises(SettingError, match=r"600 \+ 100 tokens exceed the model's context of 512"):
        plan(tmp_path, 600, "--max-model-len", "512")
