"""Whole studies on a stub engine, with predictions that are computed while trials run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from records.trials import Failure
from tests.unit.study.conftest import SPACE, Bench
from tuner.sampler.encoding import Params
from tuner.sampler.prior import Prediction, Prior
from tuner.settings.study import RESIDUAL
from tuner.specs import TrialSpec
from tuner.study import run


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
