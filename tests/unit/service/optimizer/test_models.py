"""Samplers with a model, over the API and directly."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from storage.metrics import Direction
from storage.records import Verdict
from tests.unit.service.optimizer.api import SPACE, Api, serving
from tuner.scoring.objectives import Objective
from tuner.service.optimizer.settings import OptimizerSettings, read_space
from tuner.study.optuna_study import OptunaStudy

ROOT = Path(__file__).parents[4]
FREE = SPACE[: SPACE.index("rules:")]
OBJECTIVES = (Objective("loss", Direction.MINIMIZE, 1.0),)


def loss(params: Mapping[str, Any]) -> float:
    return float(abs(params["batch"] - 20) + 10 * params["share"] + (3 if params["mode"] == "eager" else 0))


def direct(folder: Path, sampler: str, seed: int, trials: int) -> list[Mapping[str, Any]]:
    """Return the configurations of the project's own study with the same settings."""
    settings = OptimizerSettings(read_space(FREE), OBJECTIVES, sampler, seed)
    found = []
    url = f"sqlite:///{folder / 'direct.db'}"
    with closing(OptunaStudy(url, "direct", settings.space, settings.objectives, seed, sampler)) as study:
        for _ in range(trials):
            asked = study.ask()
            found.append(asked.config)
            study.tell(asked.number, Verdict({"loss": loss(asked.config)}, {}, None))
    return found


@pytest.mark.parametrize("sampler", ["residual", "tpe"])
def test_the_api_suggests_what_the_sampler_suggests(tmp_path: Path, sampler: str) -> None:
    """Also by a second process that reads the first one's trials."""
    expected = direct(tmp_path, sampler, 7, 16)
    found = []
    tokens: dict[str, str] = {}
    for part in range(2):
        with serving(tmp_path) as api:
            api.tokens = tokens = api.tokens or tokens
            api.create(space=FREE, sampler=sampler, seed=7)
            for _ in range(8):
                (trial,) = api.suggest(f"c{part}")
                found.append(trial["params"])
                api.complete(trial["number"], f"c{part}", metrics={"loss": loss(trial["params"])})
    assert found == expected


@pytest.mark.parametrize("sampler", ["residual", "tpe"])
def test_trials_of_one_suggestion_differ_and_keep_the_rules(api: Api, sampler: str) -> None:
    api.create(sampler=sampler)
    for trial in api.suggest(count=15):
        api.complete(trial["number"], metrics={"loss": loss(trial["params"])})
    trials = api.suggest(count=8)
    assert len({str(trial["params"]) for trial in trials}) == 8
    for trial in api.get("/o/trials"):
        assert not (trial["params"]["batch"] > 32 and trial["params"]["share"] > 0.8)
    assert api.suggest(count=8) == trials


def test_a_rule_that_excludes_almost_everything_is_kept(api: Api) -> None:
    """The sampler's own proposals break the rule, so random configurations take their place."""
    space = {
        "parameters": {"x": {"type": "int", "low": 1, "high": 64}},
        "rules": [{"name": "odd", "forbid": "x // 8 * 8 != x", "why": "no multiple of 8"}],
    }
    api.create(space=space, sampler="tpe")
    for _ in range(12):
        (trial,) = api.suggest()
        assert trial["params"]["x"] in range(8, 65, 8)
        api.complete(trial["number"], metrics={"loss": trial["params"]["x"]})


def test_the_residual_sampler_avoids_what_is_infeasible(api: Api) -> None:
    space = {"parameters": {"x": {"type": "float", "low": 0.0, "high": 1.0}}}
    api.create(space=space, sampler="residual")
    for _ in range(25):
        (trial,) = api.suggest()
        x = trial["params"]["x"]
        if x > 0.5:
            reason = {"client_id": "c", "reason": "out of memory"}
            api.post(f"/o/trials/{trial['number']}:infeasible", reason)
        else:
            api.complete(trial["number"], metrics={"loss": -x})
    last = [trial["state"] for trial in api.get("/o/trials?after=14")]
    assert last.count("SUCCEEDED") >= 7
    assert api.get("/o:best")["best"]["params"]["x"] > 0.45


def test_clients_of_one_model_get_different_trials(api: Api) -> None:
    api.create(sampler="residual")
    for trial in api.suggest(count=10):
        api.complete(trial["number"], metrics={"loss": loss(trial["params"])})
    with ThreadPoolExecutor(6) as pool:
        found = [own[0] for own in pool.map(api.suggest, [f"c{index}" for index in range(6)])]
    assert sorted(trial["number"] for trial in found) == list(range(10, 16))
    assert len({str(trial["params"]) for trial in found}) == 6


def test_two_processes_never_give_one_trial_twice(tmp_path: Path) -> None:
    with serving(tmp_path) as one, serving(tmp_path) as two:
        two.tokens = one.tokens
        one.create(sampler="tpe")

        def client(index: int) -> list[int]:
            api, got = (one, two)[index % 2], []
            for _ in range(4):
                (trial,) = api.suggest(f"c{index}")
                api.complete(trial["number"], f"c{index}", metrics={"loss": loss(trial["params"])})
                got.append(trial["number"])
            return got

        with ThreadPoolExecutor(6) as pool:
            numbers = [number for own in pool.map(client, range(6)) for number in own]
        assert sorted(numbers) == list(range(24))


def test_a_random_sampler_loads_no_optuna() -> None:
    code = (
        "import sys; from tuner.service.optimizer.clients import Clients; from tuner.service.optimizer.draws import"
        " Draws; from tuner.service.optimizer.settings import make_spec, read_space;"
        " from tuner.scoring.objectives import Objective; from storage.metrics import Direction;"
        f" d = Draws(); d.learn(1, make_spec({FREE!r}, [Objective('loss', Direction.MINIMIZE, 1.0)], 'random', 3));"
        " print(d.draw(1, 5).params); print({'optuna', 'scipy', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    first, loaded = done.stdout.splitlines()
    assert first.startswith("{'batch': ")
    assert loaded == "set()"
