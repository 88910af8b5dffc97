"""What earlier studies teach a sampler: good starts, nothing about levels, and nothing that predictions say already."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.study import StudyDirection

from tuner.sampler.prior.prior_cache import Prediction
from tuner.sampler.residual import ResidualSampler
from tuner.sampler.surrogate.encoding import Encoder
from tuner.sampler.surrogate.history import History, scales_of
from tuner.sampler.transfer import SourceHistory, Transfer

optuna.logging.set_verbosity(optuna.logging.ERROR)

UP = StudyDirection.MAXIMIZE
PLACES = [0.1, 0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
"""What earlier studies measured, the defaults first."""


def space(trial: Any) -> dict[str, float]:
    return {"x": trial.suggest_float("x", 0.0, 1.0), "idle": trial.suggest_float("idle", 0.0, 1.0)}


def peak_at(best: float, level: float = 1000.0) -> Callable[[float], float]:
    return lambda x: level * math.exp(-2.0 * (x - best) ** 2)


def history(speed: Callable[[float], float], fails_beyond: float = 2.0) -> History:
    found = History()
    for place in PLACES:
        config = {"x": place, "idle": 0.5}
        if place > fails_beyond:
            found.failed.append(config)
        else:
            found.measured.append(config)
            found.values.append((speed(place),))
            found.constraints.append({})
    return found


def study_of(sampler: ResidualSampler, speed: Callable[[float], float], trials: int) -> list[float]:
    """Return where a study measured, the defaults first."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.enqueue_trial({"x": 0.1, "idle": 0.5})
    study.optimize(lambda trial: speed(space(trial)["x"]), n_trials=trials)
    return [trial.params["x"] for trial in study.trials]


def taught(*earlier: History, **changes: Any) -> ResidualSampler:
    return ResidualSampler(space, earlier=[SourceHistory(each) for each in earlier], **changes)


@pytest.mark.parametrize("level", [1000.0, 20.0])
def test_the_first_choice_is_where_an_earlier_study_was_best_whatever_its_level(level: float) -> None:
    _, first, *_ = study_of(taught(history(peak_at(0.7, level))), peak_at(0.7), 3)
    assert first == pytest.approx(0.7, abs=0.15)


def test_what_moved_is_found_from_there() -> None:
    places = study_of(taught(history(peak_at(0.6))), peak_at(0.8), 12)
    assert min(abs(place - 0.8) for place in places) < 0.05


def test_an_earlier_study_that_misleads_is_unlearned() -> None:
    places = study_of(taught(history(lambda x: 1e6 / peak_at(0.7)(x))), peak_at(0.7), 12)
    assert min(abs(place - 0.7) for place in places) < 0.1


def test_where_an_earlier_study_failed_is_left_for_later() -> None:
    places = study_of(taught(history(peak_at(1.0), fails_beyond=0.75)), peak_at(1.0), 4)
    assert all(place < 0.8 for place in places[1:])
    assert max(places) > 0.55


def test_workers_that_start_together_get_the_best_of_the_earlier_ones_each_once() -> None:
    study = optuna.create_study(direction="maximize", sampler=taught(history(peak_at(0.7)), history(peak_at(0.2, 5.0))))
    asked = [space(study.ask())["x"] for _ in range(3)]
    # relative to the defaults: e^0.72 at .7, e^0.70 at .6 and at .8; the other study's best has e^0.02
    assert asked == [0.7, 0.6, 0.8]


def test_what_breaks_a_rule_here_is_not_handed_down() -> None:
    sampler = taught(history(peak_at(0.7)), allowed=lambda params: params["x"] < 0.65)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    assert space(study.ask())["x"] == 0.6


def test_the_best_kept_every_promise_and_is_counted_from_its_own_defaults() -> None:
    broken = history(peak_at(0.7))
    broken.constraints = [{"p99_tpot_ms<50": 0.1 if x > 0.5 else -0.1} for x in PLACES]
    [scale] = scales_of([(1.0,)], [UP], None)
    assert [config["x"] for config in Transfer([SourceHistory(broken)], False).best([scale])[:3]] == [0.5, 0.4, 0.3]


def shift(earlier: SourceHistory, beside_predictions: bool) -> dict[float, float]:
    """Return what is added to the gain, by place."""
    encoder = Encoder({"x": FloatDistribution(0.0, 1.0), "idle": FloatDistribution(0.0, 1.0)})
    transfer = Transfer([earlier], beside_predictions)
    assert transfer.teaches
    rows, effects = encoder.both([{"x": place, "idle": 0.5} for place in PLACES])
    found = transfer.shift(rows, effects, encoder, scales_of([(7.0,)], [UP], None), [])
    assert found.shape == (len(PLACES), 2)
    return dict(zip(PLACES, found[:, 0], strict=True))


def test_gains_are_logarithms_of_the_ratio_to_the_defaults() -> None:
    found = shift(SourceHistory(history(peak_at(0.7))), beside_predictions=False)
    assert found[0.7] - found[0.1] == pytest.approx(2.0 * 0.6**2, abs=0.03)


def test_what_was_predicted_of_the_earlier_study_is_no_lesson() -> None:
    known = history(peak_at(0.7))
    right = [Prediction((3.0 * value,), {}) for (value,) in known.values]  # a wrong level is none either
    found = shift(SourceHistory(known, lambda: (right, [])), beside_predictions=True)
    assert max(map(abs, found.values())) < 0.01

    twice = [
        Prediction((value / (2.0 if x > 0.5 else 1.0),), {}) for x, (value,) in zip(PLACES, known.values, strict=True)
    ]
    found = shift(SourceHistory(known, lambda: (twice, [])), beside_predictions=True)
    assert found[0.9] - found[0.1] == pytest.approx(math.log(2.0), abs=0.05)


def test_what_was_not_predicted_to_run_teaches_nothing_of_gains() -> None:
    """The defaults and all beyond .5 are not predicted; of the rest everything is, with another level."""
    known = history(peak_at(0.7))
    said = [
        Prediction((3.0 * value,), {}) if 0.1 != x <= 0.5 else (None if x == 0.1 else Prediction(None, {}))
        for x, (value,) in zip(PLACES, known.values, strict=True)
    ]
    found = shift(SourceHistory(known, lambda: (said, [])), beside_predictions=True)
    assert max(map(abs, found.values())) < 0.01
    none = SourceHistory(known, lambda: ([None] * len(PLACES), []))
    assert not Transfer([none], beside_predictions=True).teaches


def test_beside_predictions_a_study_of_which_nothing_is_predicted_offers_its_best_and_no_lessons() -> None:
    transfer = Transfer([SourceHistory(history(peak_at(0.7)))], beside_predictions=True)
    assert transfer.exists
    assert not transfer.teaches
    sampler = ResidualSampler(
        space,
        prior=lambda params: Prediction((1000.0,), {}),
        predicted=20,
        earlier=[SourceHistory(history(peak_at(0.7)))],
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    assert space(study.ask()) == {"x": 0.7, "idle": 0.5}


def test_what_an_earlier_study_handed_down_is_predicted_before_the_next_choice() -> None:
    """As all that was chosen is: the next choice compares what is measured of it with that."""
    asked: list[Any] = []

    def prior(params: Any) -> Prediction:
        asked.append(dict(params))
        return Prediction((1000.0,), {})

    sampler = ResidualSampler(space, prior=prior, predicted=20, earlier=[SourceHistory(history(peak_at(0.7)))])
    study = optuna.create_study(direction="maximize", sampler=sampler)
    first = study.ask()
    assert space(first) not in asked
    study.tell(first, 1100.0)
    sampler.prepare([UP])
    assert asked[-1] == first.params
    before = len(asked)
    space(study.ask())
    assert len(asked) == before


def test_a_study_that_measured_nothing_teaches_nothing() -> None:
    failed = History(failed=[{"x": 0.5, "idle": 0.5}])
    assert not Transfer([SourceHistory(failed)], False).exists
    with_it, without = (
        study_of(each, peak_at(0.7), 10) for each in (taught(failed, seed=4), ResidualSampler(space, seed=4))
    )
    assert with_it == without


def test_failures_are_learned_as_chances() -> None:
    encoder = Encoder({"x": FloatDistribution(0.0, 1.0), "idle": FloatDistribution(0.0, 1.0)})
    transfer = Transfer([SourceHistory(history(peak_at(0.7), fails_beyond=0.5))], False)
    rows, effects = encoder.both([{"x": 0.2, "idle": 0.5}, {"x": 0.9, "idle": 0.5}])
    found = transfer.shift(rows, effects, encoder, scales_of([(7.0,)], [UP], None), [])
    assert found[0, 1] == pytest.approx(-0.15, abs=0.1)  # of what nothing is known of, 15 % are thought to fail
    assert found[1, 1] == pytest.approx(0.85, abs=0.15)
