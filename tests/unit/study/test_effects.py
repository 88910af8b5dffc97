"""The reduction of a winner of another engine than the default one, and what counts as this winner without a flag."""

from __future__ import annotations

from dataclasses import replace

import pytest

from records.trials import Config, TrialRecord
from search_spaces import JoinedSpace, join, load_space
from tests.unit.search_spaces.test_joined_space import LLAMA, VLLM
from tests.unit.study.test_conclusion import record
from tuner.study.conclusion import without_one_flag
from tuner.study.reduction import without_flags

ENGINE: Config = {"engine": "llama.cpp"}
WINNER: Config = {**ENGINE, "llama.cpp.ctx_size": 1024}


@pytest.fixture(scope="module")
def both() -> JoinedSpace:
    return join({"vllm": load_space("cpu").resolve(VLLM), "llama.cpp": load_space("llama.cpp").resolve(LLAMA)})


def trial(number: int, config: Config) -> TrialRecord:
    return replace(record(number, [1.0]), config=config)


def test_the_defaults_of_vllm_are_no_llama_cpp_without_its_flag(both: JoinedSpace) -> None:
    """Seen in a study: a flag of llama.cpp had the effect of llama.cpp itself, ×2.73."""
    winner = trial(12, WINNER)
    assert without_one_flag(both, [trial(0, {}), winner], winner) == {}
    engine = trial(1, ENGINE)
    assert without_one_flag(both, [trial(0, {}), engine, winner], winner) == {"llama.cpp.ctx_size": engine}


def test_the_last_flag_of_another_engine_may_go_too(both: JoinedSpace) -> None:
    form = without_flags(both, trial(12, WINNER), ["llama.cpp.ctx_size"])
    assert form is not None
    assert (form.config, form.label) == (ENGINE, "#12 with 0 of 1 flags")
    assert without_flags(both, trial(3, {"vllm.enforce_eager": True}), ["vllm.enforce_eager"]) is None
