"""Studies on the fake vLLM, whose benchmarks can be held in the middle."""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fakes import install_fake_vllm
from tests.faults.command import Study
from tests.model_configs import write_folder

WORKLOAD = ("--input-len", "128", "--output-len", "64", "--prompts", "40", "--users", "10")
SEARCH = ("--space", "cpu", "--baseline-repeats", "1", "--confirm-rounds", "0")
SERVER = ("--", "--max-model-len", "1024")

MakeStudy = Callable[..., Study]


@pytest.fixture(scope="module", autouse=True)
def _hang_ups_end_a_process() -> Iterator[None]:
    """Restore the default of SIGHUP: under `nohup`, commands inherit that it is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def make_study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeStudy]:
    """Make a study from its number of trials and the behaviour of the fake vLLM."""
    made: list[Study] = []

    def make(trials: int, **behaviour: Any) -> Study:
        folder = tmp_path_factory.mktemp("study")
        vllm = install_fake_vllm(folder / "bin", **behaviour)
        model = folder / "model"
        config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 4096}
        write_folder(model, config)
        (model / "tokenizer.json").write_text("{}")
        arguments = ("--trials", str(trials), *SEARCH, *WORKLOAD, *SERVER)
        made.append(Study(folder, vllm, model, arguments))
        return made[-1]

    yield make
    for study in made:
        study.close()
