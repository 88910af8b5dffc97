"""Flag effects: which parameters are reset, and that the intervals contain the true ratios."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
import pytest

from tuner.sampler.candidates import CandidateSpace
from tuner.sampler.flag_effects import Elimination, ReductionStep, reset_to_default
from tuner.sampler.residual import ResidualSampler

DEFAULTS = {"method": "plain", "batch": 64, "cache": None, "idle": 0.5}
BEST = {"method": "draft", "depth": 6, "batch": 256, "cache": True, "idle": 0.25}
METRICS = ["speed", "token_ms"]


def space(trial: Any) -> dict[str, Any]:
    config = {"method": trial.suggest_categorical("method", ["plain", "draft", "tree"])}
    if config["method"] != "plain":
        config["depth"] = trial.suggest_int("depth", 1, 16)
    config["batch"] = trial.suggest_int("batch", 16, 1024, log=True)
    config["cache"] = trial.suggest_categorical("cache", [None, True, False])
    config["idle"] = trial.suggest_float("idle", 0.0, 1.0)
    return config


def test_each_parameter_is_reset_alone_together_with_those_that_depend_on_it() -> None:
    assert reset_to_default(CandidateSpace(space), BEST, DEFAULTS) == {
        "method": {"method": "plain", "batch": 256, "cache": True, "idle": 0.25},
        "batch": {**BEST, "batch": 64},
        "cache": {**BEST, "cache": None},
        "idle": {**BEST, "idle": 0.5},
    }


def test_parameters_at_their_defaults_are_not_reset() -> None:
    assert reset_to_default(CandidateSpace(space), {**DEFAULTS, "batch": 128}, DEFAULTS) == {
        "batch": {**DEFAULTS, "batch": 64}
    }


def test_one_and_true_are_different_defaults() -> None:
    def switch(trial: Any) -> dict[str, Any]:
        return {"level": trial.suggest_categorical("level", [1, True])}

    assert reset_to_default(CandidateSpace(switch), {"level": True}, {"level": 1}) == {"level": {"level": 1}}


def true_metrics(config: dict[str, Any]) -> tuple[float, float]:
    """Return tokens a second and ms a token: drafting is 1.3 times as fast and costs 10 %, a batch of 256 1.25."""
    drafts = config["method"] == "draft"
    speed = 1000.0 * (1.3 if drafts else 1.0) * (1.25 if config["batch"] >= 160 else 1.0)
    return speed, 10.0 * (1.1 if drafts else 1.0) * (0.9 if config["cache"] else 1.0)


@pytest.fixture(scope="module")
def study() -> optuna.Study:
    """The defaults, the best and 60 random trials with 2 % noise; the plain method violates the constraint."""
    random = np.random.default_rng(5)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=ResidualSampler(space, seed=1))
    for number in range(62):
        candidates, given = CandidateSpace(space), {0: DEFAULTS, 1: BEST}.get(number)
        config = candidates.draw(random, given)
        assert config is not None
        values = [value * float(np.exp(0.02 * random.standard_normal())) for value in true_metrics(dict(config))]
        trial = optuna.trial.create_trial(params=dict(config), distributions=candidates.distributions, values=values)
        trial.set_constraint("slo", 0.3 if config["method"] == "plain" else -0.3)
        study.add_trial(trial)
    return study


def test_intervals_contain_the_true_ratios_and_an_idle_parameter_has_no_effect(study: optuna.Study) -> None:
    sampler = ResidualSampler(space, weights=[3, 1], seed=1)
    effects = {each.name: each for each in sampler.flag_effects(study, 1, 0, METRICS)}
    truth = {
        "method": (1.3**3 / 1.1) ** 0.25,
        "batch": 1.25**0.75,
        "cache": (1 / 0.9) ** 0.25,
        "idle": 1.0,
    }
    assert set(effects) == set(truth)
    for name, ratio in truth.items():
        assert effects[name].low < ratio < effects[name].high, (name, effects[name])
        assert effects[name].ratio == pytest.approx(ratio, rel=0.04)
    assert effects["method"].low > 1
    assert effects["batch"].low > 1
    assert effects["idle"].low < 1 < effects["idle"].high
    assert effects["method"].metrics == pytest.approx({"speed": 1.3, "token_ms": 1.1}, rel=0.06)
    assert effects["batch"].metrics == pytest.approx({"speed": 1.25, "token_ms": 1.0}, rel=0.06)
    assert [effects["method"].value, effects["method"].default, effects["cache"].default] == ["draft", "plain", None]


def test_a_flag_that_the_slo_requires_is_reported_as_needed(study: optuna.Study) -> None:
    sampler = ResidualSampler(space, weights=[3, 1], seed=1)
    needed = {each.name: each.needed for each in sampler.flag_effects(study, 1, 0, METRICS)}
    assert needed["method"] > 0.9
    assert max(needed["batch"], needed["cache"], needed["idle"]) < 0.2


def test_the_largest_effect_comes_first(study: optuna.Study) -> None:
    sampler = ResidualSampler(space, weights=[3, 1], seed=1)
    ratios = [each.ratio for each in sampler.flag_effects(study, 1, 0, METRICS)]
    assert ratios == sorted(ratios, reverse=True)


def test_a_study_without_a_measured_trial_has_no_effects() -> None:
    assert ResidualSampler(space).flag_effects(optuna.create_study(), 0, 0, ["speed"]) == []


def test_flags_are_eliminated_from_the_least_to_the_largest_effect_except_the_needed(study: optuna.Study) -> None:
    sampler = ResidualSampler(space, weights=[3, 1], seed=1)
    order = sampler.eliminate(study, 1, 0, {"depth": 1})
    # depth and idle have no effect, the cache has the smaller one, and without drafting the SLO breaks.
    assert {step.name for step in order.steps[:2]} == {"depth", "idle"}
    assert [step.name for step in order.steps[2:]] == ["cache", "batch"]
    assert {"depth", "idle"} <= set(order.unproved()) <= {"depth", "idle", "cache"}
    assert order.steps[-1].loss == pytest.approx(np.log((1 / 0.9) ** 0.25 * 1.25**0.75), abs=0.06)


def test_what_may_be_luck_is_within_the_noise_or_two_and_a_half_deviations() -> None:
    steps = (
        ReductionStep("a", 0.001, 0.0),
        ReductionStep("b", 0.019, 0.001),
        ReductionStep("c", 0.049, 0.02),
        ReductionStep("d", 0.051, 0.02),
        ReductionStep("e", 0.0, 0.0),
    )
    assert Elimination(steps, noise=0.02).unproved() == ["a", "b", "c"]
    assert Elimination(steps, noise=0.3).unproved() == ["a", "b", "c"]
    assert Elimination(steps, noise=0.01).unproved() == ["a"]
