"""One search: suggestions, workers, the virtual clock, and how outcomes are reported."""

from __future__ import annotations

import math

import pytest
from optuna.study import Study
from optuna.trial import TrialState

from benchmarks.search.play import search as search_module
from benchmarks.search.play.reporting import make_study
from benchmarks.search.play.search import play
from benchmarks.search.problems.catalogue import ProblemSettings, make_problem
from benchmarks.search.problems.problem import Problem, config_key
from benchmarks.search.problems.synthetic.problems import SYNTHETIC
from benchmarks.search.problems.tables.problem import TableProblem
from benchmarks.search.samplers.catalogue import COMPARED_SAMPLERS
from benchmarks.search.samplers.compared import ComparedSampler
from tests.unit.benchmarks.toy import Toy, scripted


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> list[Study]:
    """Every study that a search makes."""
    made: list[Study] = []

    def recorded(problem: Problem, sampler: ComparedSampler, seed: int) -> Study:
        made.append(make_study(problem, sampler, seed))
        return made[-1]

    monkeypatch.setattr(search_module, "make_study", recorded)
    return made


def test_a_table_row_is_measured_at_most_once() -> None:
    problem = make_problem("h200-b7", ProblemSettings())
    record = play(problem, COMPARED_SAMPLERS["random"], 60, seed=3)
    keys = [config_key(trial.config) for trial in record.trials]
    assert len(set(keys)) == len(keys) == 22
    assert record.exhausted
    assert not record.redrawn


def test_a_table_row_is_nearest_to_itself_and_replaces_the_suggested_parameters(studies: list[Study]) -> None:
    problem = make_problem("h200-b7", ProblemSettings())
    assert isinstance(problem, TableProblem)
    for row in problem.rows:
        assert problem.snap(row.config or problem.defaults()[1], ()) == row.config
    record = play(problem, COMPARED_SAMPLERS["random"], 8, seed=0)
    trials = {trial.user_attrs["config"]: trial for trial in studies[0].trials}
    for played in record.trials[1:]:
        params = trials[config_key(played.config)].params
        assert {name: played.config[name] for name in params} == params


def test_a_search_depends_on_its_seed_only() -> None:
    problem = SYNTHETIC["crash-half"]("right")

    def trials(seed: int) -> list[tuple[str, float | None]]:
        record = play(problem, COMPARED_SAMPLERS["tpe-constrained"], 25, seed, workers=2)
        return [(config_key(trial.config), trial.outcome.score) for trial in record.trials]

    assert trials(1) == trials(1)
    assert trials(1) != trials(2)


def test_four_workers_run_four_trials_side_by_side() -> None:
    compared, sampler = scripted(9, 5, 2, 3, 4, 6, 7, 8, 0)
    record = play(Toy(), compared, 10, seed=0, workers=4)
    assert sampler.running == [1, 2, 3, 3, 3, 3, 3, 3, 3]
    moments = [trial.begun_at for trial in record.trials]
    overlap = [sum(t.begun_at <= moment < t.ended_at for t in record.trials) for moment in moments]
    assert max(overlap) == 4
    ends = [trial.ended_at for trial in record.trials]
    assert ends == sorted(ends)
    assert play(Toy(), scripted(9, 5, 2)[0], 4, seed=0).trials[-1].ended_at > ends[3]


def test_a_compilation_takes_time_once() -> None:
    record = play(Toy(), scripted(3, 5, 2, 4)[0], 5, seed=0)
    assert [trial.ended_at - trial.begun_at for trial in record.trials] == [16, 13, 15, 17, 14]


def test_a_crash_reported_as_fail_has_no_constraint(studies: list[Study]) -> None:
    play(Toy(crashes=(7,)), scripted(5, 7, crash_report="fail", reads_constraints=False)[0], 3, seed=0)
    assert [trial.state for trial in studies[0].trials] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.FAIL]
    assert not any(trial.constraints for trial in studies[0].trials)


def test_a_crash_reported_as_a_constraint_has_no_values(studies: list[Study]) -> None:
    play(Toy(crashes=(7,)), scripted(5, 7)[0], 3, seed=0)
    last = studies[0].trials[-1]
    assert (last.state, last.values) == (TrialState.PRUNED, None)
    assert last.constraints["failed"] > 0
    assert all(trial.constraints["failed"] == 0 for trial in studies[0].trials[:-1])


def test_a_crash_reported_as_the_worst_has_the_lowest_value(studies: list[Study]) -> None:
    play(Toy(crashes=(7,)), scripted(5, 2, 7, crash_report="worst")[0], 4, seed=0)
    last = studies[0].trials[-1]
    assert (last.state, last.values) == (TrialState.COMPLETE, [1.0])
    assert last.constraints["failed"] > 0


def test_a_sampler_that_optimises_the_score_gets_its_logarithm(studies: list[Study]) -> None:
    play(Toy(), scripted(5, optimises="score")[0], 2, seed=0)
    assert [trial.values for trial in studies[0].trials] == [[0.0], [pytest.approx(math.log(5))]]


def test_a_forbidden_or_measured_suggestion_is_drawn_again(studies: list[Study]) -> None:
    record = play(Toy(forbidden=(8,)), scripted(5, 8, 5, 3)[0], 3, seed=0)
    assert [trial.config.get("x") for trial in record.trials] == [None, 5, 3]
    assert record.redrawn == 2
    assert [trial.state.name for trial in studies[0].trials] == ["COMPLETE", "COMPLETE", "PRUNED", "FAIL", "COMPLETE"]


def test_after_many_redraws_the_next_suggestion_is_measured() -> None:
    record = play(Toy(), scripted(*[5] * 40)[0], 3, seed=0)
    assert [trial.config.get("x") for trial in record.trials] == [None, 5, 5]
    assert record.redrawn == search_module.REDRAWS


def test_the_first_trial_is_the_defaults_with_their_effective_values(studies: list[Study]) -> None:
    record = play(SYNTHETIC["conditional"]("right"), COMPARED_SAMPLERS["random"], 2, seed=0)
    assert record.trials[0].config == {}
    first = studies[0].trials[0].params
    assert first["method"] == "plain"
    assert "draft_depth" not in first
