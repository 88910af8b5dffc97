"""The samplers under comparison."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.search.play.search import play
from benchmarks.search.problems.catalogue import ProblemSettings, make_problem
from benchmarks.search.problems.synthetic.problems import SYNTHETIC
from benchmarks.search.samplers.catalogue import COMPARED_SAMPLERS, RESIDUAL_NAME
from benchmarks.search.samplers.transfer import source_history, with_source_study

OTHERS = [sampler.name for sampler in COMPARED_SAMPLERS.values() if sampler.name != RESIDUAL_NAME]


@pytest.mark.parametrize("name", [name for name in OTHERS if not COMPARED_SAMPLERS[name].missing_modules])
def test_every_sampler_searches(name: str) -> None:
    sampler = COMPARED_SAMPLERS[name]
    problem = SYNTHETIC["crash-half"]("right")
    assert sampler.applies_to(problem)
    record = play(problem, sampler, 14, seed=0, workers=2)
    assert len(record.trials) == 14
    assert all(trial.outcome.feasible == (trial.true_score is not None) for trial in record.trials)


def test_a_source_study_has_the_configurations_that_the_other_space_contains() -> None:
    """The T4 lacks the L4's KV cache type; the predictions of the source study are those for the L4."""
    here, there = (make_problem(f"qwen2.5-0.5b-t4@{card}", ProblemSettings()) for card in ("t4", "l4"))
    record = play(there, COMPARED_SAMPLERS["random"], 6, seed=0)
    source = source_history(here, there, record)
    measured = source.history.measured
    assert 1 <= len(measured) <= 6
    assert measured[0] == here.defaults()[1]
    assert source.history.values[0] == record.trials[0].outcome.values
    assert all("kv_cache_dtype" not in config for config in measured)
    assert any("kv_cache_dtype" in trial.config for trial in record.trials)
    assert source.predicted is not None
    assert [found and found.values for found in source.predicted[0][:1]] == [there.predicted_reference]
    assert len(source.predicted[0]) == len(measured)


def test_a_related_source_study_improves_the_first_suggestions() -> None:
    problem = make_problem("crash-half", ProblemSettings())
    assert (
        with_source_study(COMPARED_SAMPLERS["random"], "crash-half-related", ProblemSettings(), 20)
        is COMPARED_SAMPLERS["random"]
    )
    transfer = with_source_study(COMPARED_SAMPLERS[RESIDUAL_NAME], "crash-half-related", ProblemSettings(), 20)
    warm, cold = (play(problem, sampler, 6, seed=0) for sampler in (transfer, COMPARED_SAMPLERS[RESIDUAL_NAME]))
    assert [t.config for t in warm.trials[1:]] != [t.config for t in cold.trials[1:]]
    scores = [[trial.true_score or 0.0 for trial in each.trials[1:]] for each in (warm, cold)]
    assert np.mean(scores[0]) > np.mean(scores[1])
