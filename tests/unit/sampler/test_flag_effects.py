"""What each parameter of a configuration earns: what is put back, and that the truth is found and doubted enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
import pytest

from tuner.sampler.acquisition.candidates import CandidateSpace
from tuner.sampler.flag_effects import reset_to_default
from tuner.sampler.residual import ResidualSampler

DEFAULTS = {"method": "plain", "batch": 64, "cache": None, "idle": 0.5}
BEST = {"method": "draft", "depth": 6, "batch": 256, "cache": True, "idle": 0.25}


def space(trial: Any) -> dict[str, Any]:
    config = {"method": trial.suggest_categorical("method", ["plain", "draft", "tree"])}
    if config["method"] != "plain":
        config["depth"] = trial.suggest_int("depth", 1, 16)
    config["batch"] = trial.suggest_int("batch", 16, 1024, log=True)
    config["cache"] = trial.suggest_categorical("cache", [None, True, False])
    config["idle"] = trial.suggest_float("idle", 0.0, 1.0)
    return config


def test_each_parameter_goes_back_alone_and_takes_along_what_counts_only_beside_it() -> None:
    found = reset_to_default(CandidateSpace(space), BEST, DEFAULTS)
    assert found == {
        "method": {"method": "plain", "batch": 256, "cache": True, "idle": 0.25},
        "batch": {**BEST, "batch": 64},
        "cache": {**BEST, "cache": None},
        "idle": {**BEST, "idle": 0.5},
    }


def test_what_is_at_its_default_stays() -> None:
    assert reset_to_default(CandidateSpace(space), {**DEFAULTS, "batch": 128}, DEFAULTS) == {
        "batch": {**DEFAULTS, "batch": 64}
    }


def test_one_and_true_are_not_the_same_default() -> None:
    def switch(trial: Any) -> dict[str, Any]:
        return {"level": trial.suggest_categorical("level", [1, True])}

    assert reset_to_default(CandidateSpace(switch), {"level": True}, {"level": 1}) == {"level": {"level": 1}}


def figures(config: dict[str, Any]) -> tuple[float, float]:
    """Tokens a second and milliseconds a token: drafting gives 30 % and costs 10 %, a batch of 256 gives 25 % of 64."""
    drafts = config["method"] == "draft"
    speed = 1000.0 * (1.3 if drafts else 1.0) * (1.25 if config["batch"] >= 160 else 1.0)
    return speed, 10.0 * (1.1 if drafts else 1.0) * (0.9 if config["cache"] else 1.0)


@pytest.fixture(scope="module")
def study() -> optuna.Study:
    """The defaults, the best and 60 random trials, of 2 % noise; what does not draft breaks its promise."""
    random = np.random.default_rng(5)
    made = optuna.create_study(directions=["maximize", "minimize"], sampler=ResidualSampler(space, seed=1))
    for number in range(62):
        drawn, given = CandidateSpace(space), {0: DEFAULTS, 1: BEST}.get(number)
        config = drawn.draw(random, given)
        assert config is not None
        values = [value * float(np.exp(0.02 * random.standard_normal())) for value in figures(dict(config))]
        trial = optuna.trial.create_trial(params=dict(config), distributions=drawn.distributions, values=values)
        trial.set_constraint("promise", 0.3 if config["method"] == "plain" else -0.3)
        made.add_trial(trial)
    return made


def test_the_truth_lies_within_and_what_earns_nothing_is_not_said_to(study: optuna.Study) -> None:
    sampler = ResidualSampler(space, weights=[3, 1], seed=1)
    found = {each.name: each for each in sampler.flag_effects(study, 1, 0, ["speed", "token_ms"])}
    truth = {
        "method": (1.3**3 / 1.1) ** 0.25,
        "batch": 1.25**0.75,
        "cache": (1 / 0.9) ** 0.25,
        "idle": 1.0,
    }
    assert set(found) == set(truth)
    for name, ratio in truth.items():
        assert found[name].low < ratio < found[name].high, (name, found[name])
        assert found[name].ratio == pytest.approx(ratio, rel=0.04)
    assert found["method"].low > 1
    assert found["batch"].low > 1
    assert found["idle"].low < 1 < found["idle"].high
    assert found["method"].metrics == pytest.approx({"speed": 1.3, "token_ms": 1.1}, rel=0.06)
    assert found["batch"].metrics == pytest.approx({"speed": 1.25, "token_ms": 1.0}, rel=0.06)
    assert [found["method"].value, found["method"].default, found["cache"].default] == ["draft", "plain", None]


def test_a_flag_that_an_slo_needs_is_said_to_be_needed(study: optuna.Study) -> None:
    sampler = ResidualSampler(space, weights=[3, 1], seed=1)
    needed = {each.name: each.needed for each in sampler.flag_effects(study, 1, 0, ["speed", "token_ms"])}
    assert needed["method"] > 0.9
    assert max(needed["batch"], needed["cache"], needed["idle"]) < 0.2


def test_the_most_earned_comes_first(study: optuna.Study) -> None:
    sampler = ResidualSampler(space, weights=[3, 1], seed=1)
    ratios = [each.ratio for each in sampler.flag_effects(study, 1, 0, ["speed", "token_ms"])]
    assert ratios == sorted(ratios, reverse=True)


def test_nothing_measured_earns_nothing() -> None:
    assert ResidualSampler(space).flag_effects(optuna.create_study(), 0, 0, ["speed"]) == []
