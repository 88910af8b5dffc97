"""Warm start from source studies: first trials, levels, predictions, and misleading sources."""

import math
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.study import StudyDirection

from tuner.sampler.encoding import Encoder
from tuner.sampler.history import History, objective_scales
from tuner.sampler.prior import Prediction
from tuner.sampler.residual import ResidualSampler
from tuner.sampler.transfer import SourceHistory, Transfer

optuna.logging.set_verbosity(optuna.logging.ERROR)

MAXIMIZE = StudyDirection.MAXIMIZE
MEASURED_X = [0.1, 0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
"""Values of x that source studies measured, the defaults first."""


def space(trial: Any) -> dict[str, float]:
    return {"x": trial.suggest_float("x", 0.0, 1.0), "idle": trial.suggest_float("idle", 0.0, 1.0)}


def peak_at(best: float, level: float = 1000.0) -> Callable[[float], float]:
    return lambda x: level * math.exp(-2.0 * (x - best) ** 2)


def source(speed: Callable[[float], float], fails_beyond: float = 2.0) -> History:
    history = History()
    for x in MEASURED_X:
        config = {"x": x, "idle": 0.5}
        if x > fails_beyond:
            history.failed.append(config)
        else:
            history.measured.append(config)
            history.values.append((speed(x),))
            history.constraints.append({})
    return history


def measured_x(sampler: ResidualSampler, speed: Callable[[float], float], trials: int) -> list[float]:
    """Return the values of x that a study measures, the defaults first."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.enqueue_trial({"x": 0.1, "idle": 0.5})
    study.optimize(lambda trial: speed(space(trial)["x"]), n_trials=trials)
    return [trial.params["x"] for trial in study.trials]


def warm_started(*sources: History, **changes: Any) -> ResidualSampler:
    return ResidualSampler(space, sources=[SourceHistory(each) for each in sources], **changes)


@pytest.mark.parametrize("level", [1000.0, 20.0])
def test_the_first_suggestion_is_near_the_source_studys_best_whatever_its_level(level: float) -> None:
    _, first, *_ = measured_x(warm_started(source(peak_at(0.7, level))), peak_at(0.7), 3)
    assert first == pytest.approx(0.7, abs=0.15)


@pytest.mark.parametrize(
    ("speed", "best", "within"),
    [(peak_at(0.6), 0.8, 0.05), (lambda x: 1e6 / peak_at(0.7)(x), 0.7, 0.1)],
    ids=["moved", "inverted"],
)
def test_an_optimum_elsewhere_than_the_sources_is_reached(
    speed: Callable[[float], float], best: float, within: float
) -> None:
    tried = measured_x(warm_started(source(speed)), peak_at(best), 12)
    assert min(abs(x - best) for x in tried) < within


def test_configurations_that_failed_in_the_source_study_are_not_tried_first() -> None:
    tried = measured_x(warm_started(source(peak_at(1.0), fails_beyond=0.75)), peak_at(1.0), 4)
    assert all(x < 0.8 for x in tried[1:])
    assert max(tried) > 0.55


def test_workers_that_start_together_get_the_best_of_the_sources_each_once() -> None:
    sampler = warm_started(source(peak_at(0.7)), source(peak_at(0.2, 5.0)))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    suggested = [space(study.ask())["x"] for _ in range(3)]
    # relative to the defaults: e^0.72 at .7, e^0.70 at .6 and at .8; the other study's best has e^0.02
    assert suggested == [0.7, 0.6, 0.8]


def test_a_configuration_that_breaks_a_rule_of_the_new_study_is_not_suggested() -> None:
    sampler = warm_started(source(peak_at(0.7)), is_allowed=lambda params: params["x"] < 0.65)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    assert space(study.ask())["x"] == 0.6


def test_the_best_of_a_source_is_feasible_and_relative_to_its_own_defaults() -> None:
    violating = source(peak_at(0.7))
    violating.constraints = [{"p99_tpot_ms<50": 0.1 if x > 0.5 else -0.1} for x in MEASURED_X]
    [scale] = objective_scales([(1.0,)], [MAXIMIZE], None)
    best = Transfer([SourceHistory(violating)], False).best([scale])
    assert [config["x"] for config in best[:3]] == [0.5, 0.4, 0.3]


def mean_shift(history: SourceHistory, with_prior: bool) -> dict[float, float]:
    encoder = Encoder({"x": FloatDistribution(0.0, 1.0), "idle": FloatDistribution(0.0, 1.0)})
    transfer = Transfer([history], with_prior)
    assert transfer.shifts_mean
    inputs = encoder.encode([{"x": x, "idle": 0.5} for x in MEASURED_X])
    shift = transfer.mean_shift(inputs, encoder, objective_scales([(7.0,)], [MAXIMIZE], None), [])
    assert shift.shape == (len(MEASURED_X), 2)
    return dict(zip(MEASURED_X, shift[:, 0], strict=True))


def test_gains_are_logarithms_of_the_ratio_to_the_defaults() -> None:
    shift = mean_shift(SourceHistory(source(peak_at(0.7))), with_prior=False)
    assert shift[0.7] - shift[0.1] == pytest.approx(2.0 * 0.6**2, abs=0.03)


def test_a_source_study_that_was_predicted_exactly_shifts_nothing() -> None:
    history = source(peak_at(0.7))
    exact = [Prediction((3.0 * value,), {}) for (value,) in history.values]  # a wrong level shifts nothing either
    shift = mean_shift(SourceHistory(history, lambda: (exact, [])), with_prior=True)
    assert max(map(abs, shift.values())) < 0.01

    half = [
        Prediction((value / (2.0 if x > 0.5 else 1.0),), {})
        for x, (value,) in zip(MEASURED_X, history.values, strict=True)
    ]
    shift = mean_shift(SourceHistory(history, lambda: (half, [])), with_prior=True)
    assert shift[0.9] - shift[0.1] == pytest.approx(math.log(2.0), abs=0.05)


def test_trials_without_a_predicted_value_do_not_shift_gains() -> None:
    """The defaults and all beyond .5 have no predicted value; the rest is predicted exactly but for the level."""
    history = source(peak_at(0.7))
    predictions = [
        Prediction((3.0 * value,), {}) if 0.1 != x <= 0.5 else (None if x == 0.1 else Prediction(None, {}))
        for x, (value,) in zip(MEASURED_X, history.values, strict=True)
    ]
    shift = mean_shift(SourceHistory(history, lambda: (predictions, [])), with_prior=True)
    assert max(map(abs, shift.values())) < 0.01
    none = SourceHistory(history, lambda: ([None] * len(MEASURED_X), []))
    assert not Transfer([none], with_prior=True).shifts_mean


def test_with_a_prior_a_source_without_predictions_gives_candidates_and_no_shift() -> None:
    transfer = Transfer([SourceHistory(source(peak_at(0.7)))], with_prior=True)
    assert transfer.exists
    assert not transfer.shifts_mean
    sampler = warm_started(source(peak_at(0.7)), prior=lambda params: Prediction((1000.0,), {}), initial_predictions=20)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    assert space(study.ask()) == {"x": 0.7, "idle": 0.5}


def test_a_suggestion_from_a_source_is_predicted_before_the_next_suggestion() -> None:
    """The next suggestion compares the measurement with the prediction, as for every suggestion."""
    predicted: list[Any] = []

    def prior(params: Any) -> Prediction:
        predicted.append(dict(params))
        return Prediction((1000.0,), {})

    sampler = warm_started(source(peak_at(0.7)), prior=prior, initial_predictions=20)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    first = study.ask()
    assert space(first) not in predicted
    study.tell(first, 1100.0)
    sampler.start_background_predictions([MAXIMIZE])
    sampler.wait_for_predictions()
    assert predicted[-1] == first.params
    before = len(predicted)
    space(study.ask())
    assert len(predicted) == before


def test_a_source_study_without_measurements_has_no_influence() -> None:
    failed = History(failed=[{"x": 0.5, "idle": 0.5}])
    assert not Transfer([SourceHistory(failed)], False).exists
    with_source, without = (
        measured_x(each, peak_at(0.7), 10) for each in (warm_started(failed, seed=4), ResidualSampler(space, seed=4))
    )
    assert with_source == without


def test_failures_shift_the_probability_of_failure() -> None:
    encoder = Encoder({"x": FloatDistribution(0.0, 1.0), "idle": FloatDistribution(0.0, 1.0)})
    transfer = Transfer([SourceHistory(source(peak_at(0.7), fails_beyond=0.5))], False)
    inputs = encoder.encode([{"x": 0.2, "idle": 0.5}, {"x": 0.9, "idle": 0.5}])
    shift = transfer.mean_shift(inputs, encoder, objective_scales([(7.0,)], [MAXIMIZE], None), [])
    assert shift[0, 1] == pytest.approx(-0.15, abs=0.1)  # the prior probability of failure is 15 %
    assert shift[1, 1] == pytest.approx(0.85, abs=0.15)
