"""Fixtures of the tests against a real vLLM."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.studies import EAGER, SERVER, optimize
from tuner.engines.base import EngineSettings
from tuner.engines.vllm.engine import VllmEngine
from tuner.use_cases.tiny_model import make_model

SLOS = ("--slo", "p99_tpot_ms<1000", "--slo", "p99_ttft_ms<60000", "--slo", "success_rate>=1")
"""A busy machine meets them, too."""
ENQUEUED = ("rejected", "dies-at-start", '{"max_num_seqs": 16, "block_size": 64}')


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the made model, for vLLM's dummy loader."""
    return make_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for all studies: vLLM's parser is read once, which takes half a minute, and compilations are reused."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def engine(vllm: Path, home: Path) -> Iterator[VllmEngine]:
    """One engine for all modules, whose helper imports vLLM once, without the hub."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        made = VllmEngine(EngineSettings("vllm", str(vllm), home))
    yield made
    made.close()


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the study of `result`."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="session")
def result(study_folder: Path, home: Path, vllm: Path, tiny_model: Path) -> dict[str, Any]:
    """The defaults and three given trials: one that vLLM rejects, one that dies while it starts, one sound."""
    enqueued = [word for text in ENQUEUED for word in ("--enqueue", text)]
    more = ("--baseline-repeats", "3", "--confirm-rounds", "0", "--prompts", "30")
    return optimize(
        *(study_folder, home, vllm, tiny_model, "--trials", "4", "--space", "faults-cpu", "--study", "faults"),
        *("--output-len", "64", "--seed", "1", *SLOS, *more, *enqueued),
        server=(*SERVER, EAGER),
    )
