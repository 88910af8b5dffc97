"""The comparison of samplers: its searches and its figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from optuna.study import Study
from optuna.trial import TrialState

from benchmarks.search import play as search_play
from benchmarks.search.play import Played, Record, play
from benchmarks.search.problems.catalogue import Settings, make_problem
from benchmarks.search.problems.problem import Config, Outcome, Problem, Suggest, crashed, key_of
from benchmarks.search.problems.synthetic import SYNTHETIC
from benchmarks.search.problems.tables import TableProblem
from benchmarks.search.report import Summary, at, differences, figure, hypervolume, reached, summarise
from benchmarks.search.samplers.catalogue import RIVALS, Rival
from benchmarks.search.samplers.planned import Planned
from benchmarks.search.samplers.scoot import threshold
from search_spaces import ParameterValue
from tuner.scoring.objectives import parse_objective


class Toy(Problem):
    """A number from 0 to 9 with the score that it is given; each trial takes as many seconds as its number."""

    name = "toy"
    family = "synthetic"
    objectives = (parse_objective("output_throughput"),)
    reference = (1.0,)
    best = 9.0

    def __init__(self, crashes: Sequence[int] = (), refused: Sequence[int] = (), lucky: int | None = None) -> None:
        super().__init__()
        self.crashes, self.refused, self.lucky = crashes, refused, lucky

    def define(self, trial: Suggest) -> dict[str, ParameterValue]:
        return {"x": trial.suggest_int("x", 0, 9)}

    def defaults(self) -> tuple[dict[str, ParameterValue], dict[str, ParameterValue]]:
        return {}, {"x": 1}

    def allowed(self, config: Config) -> bool:
        return config.get("x") not in self.refused

    def measure(self, config: Config, seed: int) -> Outcome:
        x = config.get("x", 1)
        assert isinstance(x, int)
        if x in self.crashes:
            return crashed(x)
        shown = 100.0 if x == self.lucky else float(x)
        return Outcome((shown,), {}, shown, seconds=10.0 + x, compiles=((x % 2, 5.0),))

    def find_truth(self, config: Config) -> float | None:
        x = config.get("x", 1)
        assert isinstance(x, int)
        return None if x in self.crashes else float(x)


class Scripted(Planned):
    """Proposes given numbers, and keeps how many trials were running each time."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(0)
        self.numbers: Iterator[int] = iter(numbers)
        self.running: list[int] = []

    def plan(self, study: Study) -> dict[str, ParameterValue]:
        self.running.append(len(study.get_trials(states=(TrialState.RUNNING,))) - 1)
        return {"x": next(self.numbers, 0)}


def scripted(*numbers: int, **how: object) -> tuple[Rival, Scripted]:
    sampler = Scripted(numbers)
    return replace(Rival("scripted", lambda problem, seed: sampler), **how), sampler  # type: ignore[arg-type]


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> list[Study]:
    """Every study that a search makes."""
    made: list[Study] = []
    make = search_play.make_study

    def noting(problem: Problem, rival: Rival, seed: int) -> Study:
        made.append(make(problem, rival, seed))
        return made[-1]

    monkeypatch.setattr(search_play, "make_study", noting)
    return made


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_snapping_never_gives_a_measured_row_twice() -> None:
    problem = make_problem("h200-b7", Settings())
    record = play(problem, RIVALS["random"], 60, seed=3)
    keys = [key_of(trial.config) for trial in record.trials]
    assert len(set(keys)) == len(keys) == 22
    assert record.exhausted
    assert not record.redrawn


def test_a_row_is_nearest_to_itself_and_a_trial_has_its_parameters(studies: list[Study]) -> None:
    problem = make_problem("h200-b7", Settings())
    assert isinstance(problem, TableProblem)
    for row in problem.rows:
        assert problem.snap(row.config or problem.defaults()[1], ()) == row.config
    record = play(problem, RIVALS["random"], 8, seed=0)
    trials = {json_config: trial for trial in studies[0].trials for json_config in [trial.user_attrs["config"]]}
    for played in record.trials[1:]:
        params = trials[key_of(played.config)].params
        assert {name: played.config[name] for name in params} == params


def test_a_play_is_the_same_again_and_another_with_another_seed() -> None:
    problem = SYNTHETIC["crash-half"]("right")

    def once(seed: int) -> list[tuple[str, float | None]]:
        record = play(problem, RIVALS["tpe-constrained"], 25, seed, workers=2)
        return [(key_of(trial.config), trial.outcome.score) for trial in record.trials]

    assert once(1) == once(1)
    assert once(1) != once(2)


def test_with_four_workers_four_trials_run_at_once() -> None:
    rival, sampler = scripted(9, 5, 2, 3, 4, 6, 7, 8, 0)
    record = play(Toy(), rival, 10, seed=0, workers=4)
    assert sampler.running == [1, 2, 3, 3, 3, 3, 3, 3, 3]
    moments = [trial.begun_at for trial in record.trials]
    overlap = [sum(t.begun_at <= moment < t.ended_at for t in record.trials) for moment in moments]
    assert max(overlap) == 4
    ends = [trial.ended_at for trial in record.trials]
    assert ends == sorted(ends)
    assert play(Toy(), scripted(9, 5, 2)[0], 4, seed=0).trials[-1].ended_at > ends[3]


def test_a_compilation_is_paid_for_once() -> None:
    record = play(Toy(), scripted(3, 5, 2, 4)[0], 5, seed=0)
    assert [trial.ended_at - trial.begun_at for trial in record.trials] == [16, 13, 15, 17, 14]


def test_the_incumbents_truth_counts_and_not_its_luck() -> None:
    problem = Toy(lucky=2)
    summary = summarise(problem, play(problem, scripted(6, 2, 8)[0], 4, seed=0))
    assert summary.curve == (1.0, 6.0, 2.0, 2.0)
    assert summary.claimed == 50.0
    assert summary.top == 8.0
    finalists = summarise(problem, play(problem, scripted(6, 2, 8)[0], 4, seed=0), finalists=2)
    assert finalists.curve == (1.0, 6.0, 6.0, 8.0)


def test_a_crash_told_as_fail_leaves_no_constraint(studies: list[Study]) -> None:
    play(Toy(crashes=(7,)), scripted(5, 7, tells_crash_as="fail", constraints=False)[0], 3, seed=0)
    assert [trial.state for trial in studies[0].trials] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.FAIL]
    assert not any(trial.constraints for trial in studies[0].trials)


def test_a_crash_told_as_a_constraint_has_no_values(studies: list[Study]) -> None:
    play(Toy(crashes=(7,)), scripted(5, 7)[0], 3, seed=0)
    last = studies[0].trials[-1]
    assert (last.state, last.values) == (TrialState.PRUNED, None)
    assert last.constraints["failed"] > 0
    assert all(trial.constraints["failed"] == 0 for trial in studies[0].trials[:-1])


def test_a_crash_told_as_the_worst_has_the_lowest_value(studies: list[Study]) -> None:
    play(Toy(crashes=(7,)), scripted(5, 2, 7, tells_crash_as="worst")[0], 4, seed=0)
    last = studies[0].trials[-1]
    assert (last.state, last.values) == (TrialState.COMPLETE, [1.0])
    assert last.constraints["failed"] > 0


def test_a_rival_that_wants_the_score_gets_its_logarithm(studies: list[Study]) -> None:
    play(Toy(), scripted(5, told="score")[0], 2, seed=0)
    assert [trial.values for trial in studies[0].trials] == [[0.0], [pytest.approx(math.log(5))]]


def test_what_breaks_a_rule_or_is_known_is_drawn_anew(studies: list[Study]) -> None:
    record = play(Toy(refused=(8,)), scripted(5, 8, 5, 3)[0], 3, seed=0)
    assert [trial.config.get("x") for trial in record.trials] == [None, 5, 3]
    assert record.redrawn == 2
    assert [trial.state.name for trial in studies[0].trials] == ["COMPLETE", "COMPLETE", "PRUNED", "FAIL", "COMPLETE"]


def test_after_many_draws_in_vain_the_next_is_measured(studies: list[Study]) -> None:
    record = play(Toy(), scripted(*[5] * 40)[0], 3, seed=0)
    assert [trial.config.get("x") for trial in record.trials] == [None, 5, 5]
    assert record.redrawn == search_play.REDRAWS


def test_the_first_trial_is_the_defaults_with_their_effective_values(studies: list[Study]) -> None:
    record = play(SYNTHETIC["conditional"]("right"), RIVALS["random"], 2, seed=0)
    assert record.trials[0].config == {}
    first = studies[0].trials[0].params
    assert first["method"] == "plain"
    assert "draft_depth" not in first


@pytest.mark.parametrize(
    "name", [rival.name for rival in RIVALS.values() if rival.name != "ours" and not rival.missing]
)
def test_every_rival_searches(name: str) -> None:
    rival = RIVALS[name]
    problem = SYNTHETIC["crash-half"]("right")
    assert rival.suits(problem)
    record = play(problem, rival, 14, seed=0, workers=2)
    assert len(record.trials) == 14
    assert all(trial.outcome.feasible == (trial.truth is not None) for trial in record.trials)


def test_a_grid_goes_through_powers_of_two_and_leaves_the_rest() -> None:
    problem = SYNTHETIC["crash-half"]("right")
    record = play(problem, RIVALS["grid"], 100, seed=0)
    assert record.exhausted
    assert len(record.trials) == 1 + 8 * 7
    assert [(trial.config["seqs"], trial.config["tokens"]) for trial in record.trials[1:4]] == [
        (8, 256),
        (8, 512),
        (8, 1024),
    ]
    assert {trial.config["delay"] for trial in record.trials[1:]} == {0.5}
    assert not RIVALS["grid"].suits(SYNTHETIC["conditional"]("right"))


def test_the_threshold_of_feasibility_rises_with_failures() -> None:
    assert threshold([]) == 0.5
    assert threshold([False]) > 0.5 > threshold([True])
    assert threshold([False] * 50) == 0.75
    assert threshold([True] * 50) == 0.25


def test_figures() -> None:
    assert reached([0.0, 0.5, 0.96, 0.9], 0.95, 60) == 3
    assert reached([0.0, 0.5], 0.95, 60) == 61
    assert at([0.1, 0.2], 60) == 0.2
    found = figure([1.0, 2.0, 3.0])
    assert found is not None
    assert (found.value, found.low, found.high) == (2.0, 1.0, 3.0)
    assert figure([]) is None


def test_hypervolume_counts_the_defaults_as_one() -> None:
    problem = SYNTHETIC["two-objectives"]("right")

    def trial(throughput: float, tpot: float) -> Played:
        base = problem.reference
        assert base is not None
        values = (base[0] * throughput, base[1] * tpot)
        return Played({}, Outcome(values, {}, 1.0), 1.0, 0.0, 0.0, 0.0, 1.0)

    assert hypervolume(problem, [trial(1, 1)]) == pytest.approx(1.0)
    assert hypervolume(problem, [trial(2, 1)]) == pytest.approx(2.0)
    assert hypervolume(problem, [trial(2, 1), trial(1, 0.5)]) == pytest.approx(3.0)
    assert hypervolume(problem, [trial(4, 3)]) == 0.0


def test_differences_are_taken_seed_by_seed() -> None:
    def run(seed: int, score: float) -> Summary:
        trial = Played({}, Outcome((score,), {}, score), score, 0.0, 0.0, 0.0, 1.0)
        return summarise(Toy(), Record("toy", "x", seed, 1, 60, (trial,), 0, False))

    found = differences([run(1, 0.5), run(2, 0.9)], [run(2, 0.8), run(3, 0.1), run(1, 0.4)], 1.0)
    score = found["score_60"]
    assert score is not None
    assert (score.value, score.low, score.high) == (pytest.approx(0.1), pytest.approx(0.1), pytest.approx(0.1))
