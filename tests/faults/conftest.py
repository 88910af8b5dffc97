"""A study on the fake vLLM whose benchmarks take long enough to be killed in the middle."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes import install_fake_vllm
from tests.faults.command import Study

LOAD = ("--input-len", "128", "--output-len", "64", "--prompts", "40", "--users", "10")
SEARCH = ("--space", "cpu", "--baseline-repeats", "1", "--confirm-rounds", "0")
SERVER = ("--", "--max-model-len", "1024")

MakeStudy = Callable[[int, float], Study]


@pytest.fixture(autouse=True)
def hang_ups_end_a_process() -> Iterator[None]:
    """Under `nohup` commands would inherit that a hang-up is ignored, and rightly go on after one."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def make_study(tmp_path: Path) -> Iterator[MakeStudy]:
    """Make a study of so many trials, each of whose benchmarks takes so many seconds."""
    made: list[Study] = []

    def make(trials: int, bench_s: float) -> Study:
        vllm = install_fake_vllm(tmp_path / "bin", bench_s=bench_s)
        model = tmp_path / "model"
        model.mkdir()
        config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 4096}
        (model / "config.json").write_text(json.dumps(config))
        (model / "tokenizer.json").write_text("{}")
        arguments = ("--trials", str(trials), *SEARCH, *LOAD, *SERVER)
        made.append(Study(tmp_path, vllm, model, arguments))
        return made[-1]

    yield make
    for study in made:
        study.close()
