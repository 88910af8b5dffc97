"""The samplers under comparison."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.search.play.search import play
from benchmarks.search.problems.catalogue import ProblemSettings, make_problem
from benchmarks.search.problems.synthetic.problems import SYNTHETIC
from benchmarks.search.problems.tables.problem import TableProblem
from benchmarks.search.samplers.catalogue import COMPARED_SAMPLERS, RESIDUAL_NAME
from benchmarks.search.samplers.scoot import feasibility_threshold
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


def test_the_grid_has_powers_of_two_and_the_defaults_of_other_parameters() -> None:
    problem = SYNTHETIC["crash-half"]("right")
    record = play(problem, COMPARED_SAMPLERS["grid"], 100, seed=0)
    assert record.exhausted
    assert len(record.trials) == 1 + 8 * 7
    pairs = [(trial.config["seqs"], trial.config["tokens"]) for trial in record.trials[1:4]]
    assert pairs == [(8, 256), (8, 512), (8, 1024)]
    assert {trial.config["delay"] for trial in record.trials[1:]} == {0.5}
    assert not COMPARED_SAMPLERS["grid"].applies_to(SYNTHETIC["conditional"]("right"))


def test_the_feasibility_threshold_rises_with_infeasible_trials() -> None:
    assert feasibility_threshold([]) == 0.5
    assert feasibility_threshold([False]) > 0.5 > feasibility_threshold([True])
    assert feasibility_threshold([False] * 50) == 0.75
    assert feasibility_threshold([True] * 50) == 0.25


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


def test_a_table_allows_only_values_that_its_rows_have() -> None:
    """The table of 7B has ngram speculation with 1 and 8 tokens; that of 0.5B has every number between them, too."""
    problem = make_problem("h200-7b-study", ProblemSettings())
    assert isinstance(problem, TableProblem)
    assert problem.allowed({"ngram_tokens": 8, "block_size": 64, "unknown": 3})
    assert not problem.allowed({"ngram_tokens": 5, "block_size": 64})


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
