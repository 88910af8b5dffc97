"""What the search thinks best, in the numbers of the study's trials."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread

import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from storage import normalise_url
from storage.records import Config, Verdict
from tests.unit.study.conftest import SPACE, Bench
from tuner.sampler.acquisition.selection import AHEAD
from tuner.sampler.prior.background import BackgroundPredictions
from tuner.sampler.prior.prior_cache import Prediction, Prior
from tuner.sampler.surrogate.encoding import Params
from tuner.scoring.objectives import parse_objective
from tuner.study.optuna_study import OptunaStudy, shown
from tuner.study.spec import RESIDUAL, TPE

WIDE = SPACE.replace("high: 64", "high: 4096")


def opened(tmp_path: Path, sampler: str, prior: Prior | None = None, text: str = SPACE) -> OptunaStudy:
    file = tmp_path / "space.yaml"
    file.write_text(text)
    space = Bench(tmp_path, file).spec().space
    objectives = (parse_objective("output_throughput"),)
    return OptunaStudy(normalise_url(str(tmp_path / "o.db")), "s", space, objectives, 0, sampler, prior)


def told(tmp_path: Path, sampler: str, prior: Prior | None = None, text: str = SPACE) -> OptunaStudy:
    """Four trials: 1000, one that infrastructure took, 1500, 1200; the third breaks nothing, as all."""
    learner = opened(tmp_path, sampler, prior, text)
    for seqs, throughput in ((4, 1000.0), (8, None), (32, 1500.0), (16, 1200.0)):
        asked = learner.ask_fixed({"max_num_seqs": seqs, "block_size": 16}, {})
        verdict = None if throughput is None else Verdict({"output_throughput": throughput}, {}, throughput / 1000)
        learner.tell(asked.number, verdict)
    return learner


def test_the_ranking_is_in_the_numbers_of_the_study(tmp_path: Path) -> None:
    assert told(tmp_path, RESIDUAL).ranking() == [2, 3, 0]


def test_a_ranking_waits_for_predictions_that_are_being_prepared(tmp_path: Path) -> None:
    """They are asked for in another thread, until the ranking begins to wait."""
    ranking, asked = Event(), []

    def slow(params: Params) -> Prediction:
        assert ranking.wait(30)
        asked.append(params)
        return Prediction((1000.0,), {})

    learner = told(tmp_path, RESIDUAL, slow)
    wait = learner.wait_prepared

    def waiting() -> None:
        ranking.set()
        wait()

    learner.wait_prepared = waiting  # type: ignore[method-assign]
    assert asked == []
    assert learner.ranking() == [2, 3, 0]
    assert len(asked) > 4


def test_a_study_that_goes_on_predicts_what_was_tried_before_its_first_choice(tmp_path: Path) -> None:
    asked: list[tuple[int, Thread]] = []

    def prior(params: Params) -> Prediction:
        asked.append((params["max_num_seqs"], current_thread()))
        return Prediction((1000.0,), {})

    told(tmp_path, RESIDUAL, None, WIDE)
    again = opened(tmp_path, RESIDUAL, prior, WIDE)
    again.wait_prepared()
    assert {4, 32, 16} <= {seqs for seqs, _ in asked}
    again.ask()
    again.wait_prepared()
    assert main_thread() not in {thread for _, thread in asked}


def test_the_next_choice_is_prepared_beside_the_trial(tmp_path: Path) -> None:
    going, askers = Event(), []

    def slow(params: Params) -> Prediction:
        assert going.wait(30)
        askers.append(current_thread())
        return Prediction((1000.0 + params["max_num_seqs"],), {})

    going.set()
    learner = told(tmp_path, RESIDUAL, slow, WIDE)
    learner.wait_prepared()
    going.clear()
    before = len(askers)
    asked = learner.ask()  # what is wanted for the next one is held up, this one is not
    assert len(askers) == before
    learner.tell(asked.number, Verdict({"output_throughput": 1300.0}, {}, 1.3))
    going.set()
    learner.wait_prepared()
    assert before < len(askers) <= before + AHEAD + 1
    learner.ask()
    assert main_thread() not in askers


@pytest.mark.parametrize(("before", "first", "later"), [(0, 19, 0), (17, 19, 17)])
def test_predictions_give_way_to_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, first: int, later: int
) -> None:
    """And never ask for a higher priority than the program was started with, which only root may have."""
    set_to: list[int] = []
    monkeypatch.setattr(os, "getpriority", lambda which, who: before)
    monkeypatch.setattr(os, "setpriority", lambda which, who, niceness: set_to.append(niceness))
    learner = opened(tmp_path, RESIDUAL, lambda params: Prediction((1000.0,), {}), WIDE)
    learner.ask_fixed({"max_num_seqs": 4}, {})
    learner.wait_prepared()
    assert set_to == [first, later]


def test_a_choice_that_comes_too_early_asks_for_the_rest_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in the same order: the first wanted by the other thread, which is waited for, all others by this one."""
    ended, held_up, stop, askers = Event(), Event(), BackgroundPredictions.stop, []

    def prior(params: Params) -> Prediction:
        askers.append((current_thread(), params["max_num_seqs"]))
        assert current_thread() is main_thread() or ended.wait(30)
        return Prediction((1000.0 + params["max_num_seqs"],), {})

    def search(folder: Path, early: bool) -> list[Config]:
        folder.mkdir()
        ended.set()
        learner = told(folder, RESIDUAL, prior, WIDE)
        learner.wait_prepared()
        askers.clear()
        found = []
        if early:
            held_up.set()
        for _ in range(3):
            asked = learner.ask()
            learner.tell(asked.number, Verdict({"output_throughput": 1300.0}, {}, 1.3))
            found.append(asked.config)
            if not early:
                learner.wait_prepared()
        ended.set()
        learner.wait_prepared()
        return found

    def stopping(self: BackgroundPredictions) -> None:
        self._stopped.set()
        ended.set()
        stop(self)
        if held_up.is_set():
            ended.clear()

    monkeypatch.setattr(BackgroundPredictions, "stop", stopping)
    late = search(tmp_path / "late", early=False)
    beside = [seqs for _, seqs in askers]
    assert main_thread() not in {thread for thread, _ in askers}
    assert search(tmp_path / "early", early=True) == late
    assert [seqs for _, seqs in askers] == beside
    assert main_thread() in {thread for thread, _ in askers}


def test_of_a_long_history_the_first_measured_the_best_and_the_latest_are_shown() -> None:
    """200 trials: 0 failed, 1 is the worst of all, 20 to 79 are the best 60."""

    def trial(number: int) -> FrozenTrial:
        state = TrialState.PRUNED if number == 0 else TrialState.COMPLETE
        score = 0.1 if number == 1 else 2.0 if 20 <= number < 80 else 1.0
        made = create_trial(
            state=state, value=None if number == 0 else score, user_attrs={"score": None if number == 0 else score}
        )
        made.number = number
        return made

    numbers = [each.number for each in shown([trial(number) for number in range(200)])]
    # 1 + 60, and of the 140 the other 79 are the latest
    assert numbers == [1, *range(20, 80), *range(121, 200)]
    assert len(numbers) == 140
    few = [trial(number) for number in range(140)]
    assert shown(few) == few


def test_a_sampler_without_a_model_of_its_own_ranks_nothing(tmp_path: Path) -> None:
    assert told(tmp_path, TPE).ranking() == []


@pytest.mark.parametrize("sampler", [RESIDUAL, TPE])
def test_before_anything_was_measured_nothing_is_ranked(tmp_path: Path, sampler: str) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(SPACE)
    space = Bench(tmp_path, file).spec().space
    url = normalise_url(str(tmp_path / "o.db"))
    assert OptunaStudy(url, "s", space, (parse_objective("output_throughput"),), 0, sampler).ranking() == []
