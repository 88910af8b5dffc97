"""What samplers propose: the space and its rules hold, and a plain Optuna study proposes the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest

from records.metrics import Direction
from tests.unit.service.http.optimizations.api import SPACE, Api, serving
from tuner.errors import SettingError
from tuner.scoring.goals import Objective
from tuner.service.http.optimizations.proposals import Proposer, read_space
from tuner.study.optuna_study import residual_sampler

FREE = SPACE[: SPACE.index("rules:")]
OBJECTIVES = (Objective("loss", Direction.MINIMIZE, 1.0),)


def loss(params: Mapping[str, Any]) -> float:
    return float(abs(params["batch"] - 20) + 10 * params["share"] + (3 if params["mode"] == "eager" else 0))


def plain(trials: int) -> list[Mapping[str, Any]]:
    """Return what the public sampler proposes in a plain study."""
    space = read_space(FREE)
    found: list[Mapping[str, Any]] = []
    study = optuna.create_study(sampler=residual_sampler(space, OBJECTIVES, None).with_seed(7))
    for _ in range(trials):
        trial = study.ask()
        found.append(space.suggest(trial))
        trial.set_constraint("failed", 0.0)
        study.tell(trial, loss(found[-1]))
    return found


def test_two_processes_suggest_what_a_plain_study_suggests(tmp_path: Path) -> None:
    found = []
    tokens: dict[str, str] = {}
    for part in range(2):
        with serving(tmp_path) as api:
            api.tokens = tokens = api.tokens or tokens
            api.create(space=FREE, sampler="residual", seed=7)
            for _ in range(6):
                (trial,) = api.suggest(f"c{part}")
                found.append(trial["params"])
                api.complete(trial["number"], f"c{part}", metrics={"loss": loss(trial["params"])})
    assert found == plain(12)


@pytest.mark.parametrize("sampler", ["residual", "tpe", "random"])
def test_trials_of_one_suggestion_differ_and_keep_the_rules(api: Api, sampler: str) -> None:
    api.create(sampler=sampler)
    for trial in api.suggest(count=12):
        api.complete(trial["number"], metrics={"loss": loss(trial["params"])})
    trials = api.suggest(count=6)
    assert len({str(trial["params"]) for trial in trials}) == 6
    for trial in api.get("/o/trials"):
        params = trial["params"]
        assert 1 <= params["batch"] <= 64
        assert ("graphs" in params) == (params["mode"] == "graph")
        assert not (params["batch"] > 32 and params["share"] > 0.8)


def test_random_configurations_follow_proposals_that_break_a_rule() -> None:
    odd = {"name": "odd", "forbid": "x // 8 * 8 != x", "why": "no multiple of 8"}
    space = read_space({"parameters": {"x": {"type": "int", "low": 1, "high": 64}}, "rules": [odd]})
    _, config = Proposer(space, OBJECTIVES, "tpe", 0).propose([])
    assert config["x"] in range(8, 65, 8)


def test_rules_that_exclude_everything_are_an_error() -> None:
    rules = [{"name": "all", "forbid": "x >= 1", "why": "no"}]
    space = read_space({"parameters": {"x": {"type": "int", "low": 1, "high": 9}}, "rules": rules})
    for sampler in ("random", "tpe", "residual"):
        with pytest.raises(SettingError, match="the rules exclude 500 of 500 configurations that were drawn"):
            Proposer(space, OBJECTIVES, sampler, 0).propose([])


def test_the_residual_sampler_avoids_what_is_infeasible(api: Api) -> None:
    api.create(space={"parameters": {"x": {"type": "float", "low": 0.0, "high": 1.0}}}, sampler="residual")
    for _ in range(25):
        (trial,) = api.suggest()
        x = trial["params"]["x"]
        api.complete(trial["number"], **({"reason": "out of memory"} if x > 0.5 else {"metrics": {"loss": -x}}))
    last = [trial["state"] for trial in api.get("/o/trials?after=14")]
    assert last.count("SUCCEEDED") >= 7
    assert api.get("/o:best")["best"]["params"]["x"] > 0.45
