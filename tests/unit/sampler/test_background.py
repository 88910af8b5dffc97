"""Predictions are computed while trials run: alone, and in whole studies on a stub engine."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import IntDistribution
from optuna.study import StudyDirection
from optuna.trial import TrialState

from records.trials import Failure
from tests.unit.sampler.test_residual import exact_prior, new_study, run_study, space, speed
from tests.unit.study.conftest import SPACE, Bench
from tuner.sampler.acquisition import PREDICTED_NEXT
from tuner.sampler.encoding import Encoder, Params
from tuner.sampler.history import ObjectiveScale
from tuner.sampler.prior import Prediction, Prior, PriorCache
from tuner.sampler.residual import ResidualSampler
from tuner.settings.study import RESIDUAL
from tuner.specs import TrialSpec
from tuner.study import run

MAXIMIZE = [StudyDirection.MAXIMIZE]
Key = frozenset[tuple[str, Any]]


def recording_prior(predicted: list[Key]) -> Any:
    def prior(params: Any) -> Prediction:
        predicted.append(frozenset(params.items()))
        return exact_prior(params)

    return prior


def compute_predictions(sampler: ResidualSampler) -> None:
    sampler.start_background_predictions(MAXIMIZE)
    sampler.wait_for_predictions()


def test_a_suggestion_computes_no_prediction_and_queues_its_best_candidates() -> None:
    predicted: list[Key] = []
    sampler = ResidualSampler(space, prior=recording_prior(predicted), initial_predictions=30, seed=1)
    study = new_study(sampler)
    compute_predictions(sampler)
    before = len(predicted)
    assert before == 30
    for number in range(24):
        compute_predictions(sampler)
        prepared = len(predicted)
        assert prepared - before <= PREDICTED_NEXT + 1
        before = prepared
        trial = study.ask()
        config = space(trial)
        assert len(predicted) == prepared
        # Every fifth suggestion tries a rare choice, whose prediction may be missing.
        assert frozenset(config.items()) in predicted or number % 5 == 0
        study.tell(trial, speed(config))
    assert len(predicted) == len(set(predicted))
    assert len(predicted) > 24 * PREDICTED_NEXT / 2


def test_the_forest_is_imported_with_the_first_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sklearn.ensemble", raising=False)
    compute_predictions(ResidualSampler(space, prior=exact_prior, initial_predictions=5, seed=1))
    assert "sklearn.ensemble" in sys.modules


def test_trials_are_the_same_with_and_without_background_predictions() -> None:
    plain = run_study(ResidualSampler(space, prior=exact_prior, initial_predictions=30, seed=5), 14)
    sampler = ResidualSampler(space, prior=exact_prior, initial_predictions=30, seed=5)
    study = new_study(sampler)
    for _ in range(14):
        compute_predictions(sampler)
        trial = study.ask()
        study.tell(trial, speed(space(trial)))
    assert [trial.params for trial in study.trials] == [trial.params for trial in plain.trials]


def test_without_a_prior_no_thread_is_started() -> None:
    sampler = ResidualSampler(space)
    sampler.start_background_predictions(MAXIMIZE, [{"method": "plain"}])
    assert sampler._background._thread is None
    sampler.wait_for_predictions()


def test_configurations_that_break_a_rule_are_not_predicted() -> None:
    predicted: list[Key] = []
    sampler = ResidualSampler(
        space,
        prior=recording_prior(predicted),
        initial_predictions=30,
        is_allowed=lambda params: params["batch"] % 2 == 0,
        seed=3,
    )
    assert {trial.state for trial in run_study(sampler, 12).trials} == {TrialState.COMPLETE}
    assert len(predicted) > 60
    assert all(dict(params)["batch"] % 2 == 0 for params in predicted)


def test_a_configuration_that_is_queued_twice_is_predicted_once() -> None:
    predicted: list[Key] = []
    sampler = ResidualSampler(space, prior=recording_prior(predicted), initial_predictions=0)
    first, second = {"method": "plain", "batch": 8, "idle": 0.5}, {"method": "plain", "batch": 16, "idle": 0.5}
    sampler.start_background_predictions(MAXIMIZE, [first, second, first])
    sampler.wait_for_predictions()
    assert predicted == [frozenset(first.items()), frozenset(second.items())]
    compute_predictions(sampler)
    assert len(predicted) == 2


def test_a_suggestion_considers_the_first_200_and_the_latest_800_of_1300_predictions() -> None:
    cache = PriorCache(lambda params: Prediction((float(params["batch"]),), {}))
    encoder = Encoder({"batch": IntDistribution(1, 1301)})
    scales = [ObjectiveScale(1.0, 1.0, 1.0, False, 1.0)]
    for batch in range(1, 301):
        cache.predict({"batch": batch})
    assert [each["batch"] for each in cache.considered] == list(range(1, 301))  # each of them once
    for batch in range(301, 1001):
        cache.predict({"batch": batch})
    assert [each["batch"] for each in cache.considered] == list(range(1, 1001))
    assert len(cache.encode_considered(encoder)) == 1000
    for batch in range(1001, 1301):
        cache.predict({"batch": batch})
    expected = [*range(1, 201), *range(501, 1301)]
    assert [each["batch"] for each in cache.considered] == expected
    # Gains are relative to 1; the position of 1 in 1 to 1301 is 0, that of 1301 would be 1.
    assert cache.considered_means(scales, [])[:, 0].tolist() == [batch - 1 for batch in expected]
    encoded = cache.encode_considered(encoder)
    assert (1300 * encoded.rows[:, 0] + 1).round().tolist() == expected
    assert len(encoded.effects) == 1000
    assert len(cache.configurations) == 1300


def peak_at_16(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
    seqs = int(str(spec.config.get("max_num_seqs", 2048)))
    return {"success_rate": 1.0, "p99_tpot_ms": 10.0, "output_throughput": 1500.0 - 20.0 * min(abs(seqs - 16), 25)}


def configs_of_study(
    folder: Path, monkeypatch: pytest.MonkeyPatch, prior: Prior, slots: int = 1
) -> list[dict[str, Any]]:
    """Return the configurations of a study of 14 trials."""
    folder.mkdir()
    file = folder / "two.yaml"
    file.write_text(SPACE.replace("high: 64", "high: 4096"))
    monkeypatch.setattr(run, "simulator_prior", lambda spec, engine: prior)
    bench = Bench(folder, file)
    bench.run(peak_at_16, trials=14, slots=slots, sampler=RESIDUAL, confirm_rounds=0)
    return [dict(record.config) for record in bench.records()]


@pytest.mark.parametrize("slots", [1, 3])
def test_a_study_computes_predictions_in_the_background_and_reaches_the_optimum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    """The predictions are right about the one parameter that matters; their level is a third too low."""
    in_background: list[bool] = []

    def prior(params: Params) -> Prediction:
        in_background.append(threading.current_thread() is not threading.main_thread())
        distance = min(abs(int(params["max_num_seqs"]) - 16), 25)
        return Prediction((1000.0 - 13.0 * distance, 10.0), {"p99_tpot_ms<50": -0.8, "success_rate>=1": 0.0})

    configs = configs_of_study(tmp_path / "study", monkeypatch, prior, slots)
    assert len(configs) == 14
    assert configs[0] == {}
    assert any(12 <= int(config["max_num_seqs"]) <= 20 for config in configs[1:4])
    assert sum(in_background) > 100


def test_with_one_worker_a_study_repeats_however_long_its_predictions_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry = threading.Event()

    def prior(params: Params) -> Prediction:
        hurry.wait(0.005)  # The stub engine's trials take no time, so most predictions are left to the suggestions.
        return Prediction((1000.0 + 0.01 * int(params["max_num_seqs"]), 10.0), {})

    slow = configs_of_study(tmp_path / "slow", monkeypatch, prior)
    hurry.set()
    assert configs_of_study(tmp_path / "fast", monkeypatch, prior) == slow
