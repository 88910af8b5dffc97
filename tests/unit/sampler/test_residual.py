"""The sampler in plain Optuna studies: it learns, keeps promises, is told of failures and predictions, and repeats."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import optuna
import pytest
from optuna.trial import Trial, TrialState
from threadpoolctl import threadpool_info

from tuner.sampler.acquisition.selection import CandidateSelection
from tuner.sampler.prior.prior_cache import Prediction
from tuner.sampler.residual import ResidualSampler

optuna.logging.set_verbosity(optuna.logging.ERROR)


def space(trial: Any) -> dict[str, Any]:
    config = {"method": trial.suggest_categorical("method", ["plain", "draft"])}
    if config["method"] == "draft":
        config["depth"] = trial.suggest_int("depth", 1, 16)
    config["batch"] = trial.suggest_int("batch", 8, 1024, log=True)
    config["idle"] = trial.suggest_float("idle", 0.0, 1.0)
    return config


def speed(config: dict[str, Any]) -> float:
    gain = 1.5 - 0.02 * (config["depth"] - 6) ** 2 if config["method"] == "draft" else 1.2
    return float(1000 * gain * min(config["batch"], 256) / 256)


def study_of(sampler: ResidualSampler) -> optuna.Study:
    return optuna.create_study(direction="maximize", sampler=sampler)


def searched(sampler: ResidualSampler, trials: int) -> optuna.Study:
    study = study_of(sampler)
    study.optimize(lambda trial: speed(space(trial)), n_trials=trials)
    return study


def test_it_finds_the_best_method_depth_and_batch() -> None:
    found = searched(ResidualSampler(space, seed=1), 30).best_trial
    assert speed(found.params) > 0.95 * 1500


def test_it_works_without_being_given_the_space() -> None:
    assert searched(ResidualSampler(seed=1), 30).best_value > 1200


@pytest.mark.parametrize(("weights", "best"), [([8, 1], 256), ([1, 8], 8)])
def test_several_objectives_are_weighed(weights: list[float], best: int) -> None:
    """Speed grows with the batch up to 256; doubling it costs a doubling of the other objective."""
    sampler = ResidualSampler(space, weights=weights, seed=1)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    study.optimize(lambda trial: (speed(config := space(trial)), float(config["batch"])), n_trials=25)
    found = sampler.recommend(study)
    assert found is not None
    assert best / 1.5 < found.params["batch"] < best * 1.5


def test_a_parameter_may_appear_after_predictions_were_learned() -> None:
    """Without the space, one of a branch is unknown until a trial has taken that branch."""
    asked = [True]

    def branching(trial: Any) -> float:
        config = {"batch": trial.suggest_int("batch", 8, 1024, log=True), "method": "plain"}
        if len(asked) > 4:
            config["depth"] = trial.suggest_int("depth", 1, 16)
            config["method"] = "draft"
        asked.append(True)
        return speed(config)

    def predicted(params: Any) -> Prediction:
        return Prediction((speed({"method": "draft" if "depth" in params else "plain", **params}),), {})

    study = study_of(ResidualSampler(prior=predicted, seed=2))
    study.optimize(branching, n_trials=12)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert study.best_trial.params["batch"] > 200


def test_what_fails_is_avoided() -> None:
    study = study_of(ResidualSampler(space, seed=2))
    for _ in range(30):
        trial = study.ask()
        config = space(trial)
        if config["batch"] > 64:
            trial.set_constraint("failed", 10.0)
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, speed(config))
    late = study.trials[20:]
    assert sum(trial.params["batch"] > 64 for trial in late) <= 3
    assert study.best_value > 0.9 * 1500 * 64 / 256


def test_a_promise_is_kept_with_room_for_noise() -> None:
    study = study_of(ResidualSampler(space, seed=2))
    for _ in range(30):
        trial = study.ask()
        config = space(trial)
        trial.set_constraint("tpot", config["batch"] / 100 - 1)
        study.tell(trial, speed(config))
    sampler = study.sampler
    assert isinstance(sampler, ResidualSampler)
    found = sampler.recommend(study)
    assert found is not None
    assert found.params["batch"] <= 100
    assert speed(found.params) > 0.8 * 1500 * 100 / 256


def test_a_value_that_is_no_number_is_not_recommended() -> None:
    study = study_of(ResidualSampler(space))
    for value in (float("inf"), 900.0, 1200.0):
        trial = study.ask()
        space(trial)
        study.tell(trial, value)
    sampler = study.sampler
    assert isinstance(sampler, ResidualSampler)
    found = sampler.recommend(study)
    assert found is not None
    assert found.number == 2


def test_nothing_is_recommended_where_no_promise_was_kept() -> None:
    study = study_of(ResidualSampler(space))
    for _ in range(3):
        trial = study.ask()
        trial.set_constraint("tpot", 2.0)
        study.tell(trial, speed(space(trial)))
    sampler = study.sampler
    assert isinstance(sampler, ResidualSampler)
    assert sampler.recommend(study) is None


def right(params: Any) -> Prediction:
    return Prediction((speed(params),), {})


def wrong(params: Any) -> Prediction:
    return Prediction((1e6 / speed(params),), {})


def test_a_right_prediction_is_followed_at_once() -> None:
    assert searched(ResidualSampler(space, prior=right), 3).best_value > 0.98 * 1500


def test_a_wrong_prediction_is_left_again() -> None:
    assert searched(ResidualSampler(space, prior=wrong), 30).best_value > 0.9 * 1500


def test_what_is_predicted_to_be_worst_is_not_promising_even_after_one_prediction_was_far_too_good() -> None:
    """The second is predicted to have 1.25 of the defaults and has a quarter; the worst are predicted to have 1 %."""
    study = study_of(ResidualSampler(space, prior=right))
    study.enqueue_trial({"method": "plain", "batch": 256, "idle": 0.5})
    predicted = []
    for measured in (1200.0, 300.0, 1200.0):
        trial = study.ask()
        predicted.append(speed(space(trial)))
        study.tell(trial, measured)
    assert predicted[1] == pytest.approx(1500)
    assert predicted[2] > 1200 / math.e


def test_without_any_measurement_several_workers_get_the_best_predictions() -> None:
    study = study_of(ResidualSampler(space, prior=right))
    asked = [space(study.ask()) for _ in range(4)]
    assert all(speed(config) > 0.9 * 1500 for config in asked)
    assert len({tuple(config.items()) for config in asked}) == 4


def test_workers_that_start_together_get_good_predictions_that_differ() -> None:
    """All of the best tenth are within a per cent or so; `idle` changes nothing, and the depth little."""
    study = study_of(ResidualSampler(space, prior=right, seed=1))
    asked = [space(study.ask()) for _ in range(3)]
    assert speed(asked[0]) > 0.98 * 1500
    idle = sorted(config["idle"] for config in asked)
    assert min(idle[1] - idle[0], idle[2] - idle[1]) > 0.1


def test_pending_and_dropped_configurations_are_not_proposed_again() -> None:
    def narrow(trial: Any) -> dict[str, Any]:
        return {"kind": trial.suggest_categorical("kind", ["a", "b", "c", "d"])}

    study = study_of(ResidualSampler(narrow, startup=1, seed=3))
    first = study.ask()
    study.tell(first, 1.0 if narrow(first) else 0.0)
    running, dropped = study.ask(), study.ask()
    kinds = [narrow(trial)["kind"] for trial in (running, dropped)]
    study.tell(dropped, state=TrialState.FAIL)
    assert len({first.params["kind"], *kinds, narrow(study.ask())["kind"]}) == 4


def test_what_is_not_shown_is_not_proposed_again_and_counts() -> None:
    """Of a long history a study shows a part; every fifth choice switches something on, whatever is shown."""

    def kinds(trial: Any) -> str:
        return str(trial.suggest_categorical("kind", ["a", "b", "c", "d", "e", "f", "g"]))

    sampler = ResidualSampler(kinds, startup=1, seed=3)
    study = study_of(sampler)
    for kind in "abc":
        study.enqueue_trial({"kind": kind})
        first = study.ask()
        study.tell(first, 1.0 if kinds(first) == "a" else 0.5)
    study.sampler = sampler.with_seed(4, [{"kind": "d"}, {"kind": "e"}, {"kind": "f"}])
    assert kinds(study.ask()) == "g"
    history = study.sampler._read(study, None)
    assert history.known == 6
    assert len(history.tried) == 4


def test_a_choice_leaves_the_other_cores_to_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    best = CandidateSelection.best

    def counted(self: CandidateSelection) -> Any:
        counts.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        return best(self)

    monkeypatch.setattr(CandidateSelection, "best", counted)
    searched(ResidualSampler(space, startup=2), 4)
    assert counts
    assert set(counts) == {1}


def test_rules_are_kept() -> None:
    study = study_of(ResidualSampler(space, allowed=lambda params: params["batch"] % 2 == 0, seed=4))

    def objective(trial: Trial) -> float:
        config = space(trial)
        assert config["batch"] % 2 == 0
        return speed(config)

    study.optimize(objective, n_trials=14)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}


REPEAT = """
from tests.unit.sampler.test_residual import ResidualSampler, right, searched, space
study = searched(ResidualSampler(space, seed=5, prior=%s), 14)
print([sorted(trial.params.items()) for trial in study.trials])
"""


@pytest.mark.parametrize("prior", [None, right])
def test_the_same_seed_searches_the_same_in_another_process(prior: Any) -> None:
    script = REPEAT % (prior.__name__ if prior else None)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    here = searched(ResidualSampler(space, seed=5, prior=prior), 14)
    assert run.stdout.strip() == str([sorted(trial.params.items()) for trial in here.trials])
