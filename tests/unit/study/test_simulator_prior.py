"""The simulator prior: which studies have it, and what it predicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from records.trials import Provenance
from search_spaces import HardwareProfile, hardware_named
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.flags import flag_names
from tuner.settings.study import AUTO, RESIDUAL, TPE, SearchSettings, StudySettings
from tuner.study.simulator_prior import PREDICTED_FAILURE, simulator_prior
from tuner.study.specification.builder import build_spec
from tuner.study.specification.plan import plan_study
from tuner.study.specification.spec import StudySpec

INFO = EngineInfo("vllm", "0.15.1", None, flag_names(), Provenance.MEASURED, frozenset({"flashinfer"}))


def spec(card: HardwareProfile | None = None, **changes: object) -> StudySpec:
    plan = plan_study(StudySettings(search_load=1.0, **changes), simulated=True)  # type: ignore[arg-type]
    return build_spec(plan, INFO, card or hardware_named("t4"), Path("artifacts"))


@pytest.fixture(scope="module")
def predict():  # type: ignore[no-untyped-def]
    prior = simulator_prior(spec(), INFO)
    assert prior is not None
    return prior


def test_the_default_preset_is_predicted_as_the_simulator_does(predict) -> None:  # type: ignore[no-untyped-def]
    prediction = predict({})
    assert prediction.values[0] == pytest.approx(3400, rel=0.1)  # published: 3,332 tok/s
    assert all(violation <= 0 for violation in prediction.constraints.values())


def test_answers_are_predicted_to_be_kept() -> None:
    slos = ("quality>=0.99", "p99_tpot_ms<50")
    prior = simulator_prior(spec(slo=slos), INFO)
    assert prior is not None
    prediction = prior({})
    assert prediction is not None
    assert prediction.constraints["quality>=0.99"] == pytest.approx(-0.01, abs=0.001)


def test_eager_execution_is_predicted_to_be_slower(predict) -> None:  # type: ignore[no-untyped-def]
    assert predict({"cudagraph_mode": "eager"}).values[0] < 0.9 * predict({}).values[0]


def test_a_model_that_does_not_fit_the_gpu_is_predicted_to_fail() -> None:
    predict = simulator_prior(spec(model="Qwen/Qwen2.5-14B-Instruct"), INFO)
    assert predict is not None
    assert predict({}) == PREDICTED_FAILURE


def test_what_the_simulator_does_not_model_is_unknown_and_no_failure() -> None:
    info = replace(INFO, version="0.25.1", flags=None)
    plan = plan_study(StudySettings(space="vllm-extra"), simulated=True)
    prior = simulator_prior(build_spec(plan, info, hardware_named("h200"), Path("artifacts")), info)
    assert prior is not None
    assert prior({"kv_offloading_size": 8, "kv_offloading_backend": "lmcache"}) is None
    assert prior({"activation_kernel": "+silu_and_mul"}) is None
    assert prior({"watermark": 0.02}) == prior({})


@pytest.mark.parametrize("version", ["0.25.1+cpu", "0.15.1"])
def test_a_build_of_a_version_is_predicted_as_the_version(version: str) -> None:
    assert simulator_prior(spec(), replace(INFO, version=version)) is not None


def test_an_error_of_the_simulator_gives_no_prediction_and_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> object:
        raise ZeroDivisionError

    predict = simulator_prior(spec(), INFO)
    assert predict is not None
    monkeypatch.setattr("tuner.study.simulator_prior.build_server", fail)
    assert predict({}) is None
    assert predict({"block_size": 32}) is None
    (warning,) = caplog.records
    assert warning.getMessage() == "no prediction of {}, the simulator failed: ZeroDivisionError: "
    assert not warning.exc_info


def test_a_simulated_study_has_no_prior() -> None:
    assert simulator_prior(spec(), replace(INFO, provenance=Provenance.SIMULATED)) is None


def test_an_unknown_gpu_has_no_prior() -> None:
    card = replace(hardware_named("t4"), tflops={})
    assert simulator_prior(spec(card), INFO) is None


def test_an_unknown_version_has_no_prior() -> None:
    assert simulator_prior(spec(), replace(INFO, version="dev")) is None


def test_capacity_has_no_prior() -> None:
    capacity = spec(preset="qwen2.5-14b-ada-mixed", card=hardware_named("rtx6000ada"), objective=("capacity",))
    assert simulator_prior(capacity, INFO) is None


@pytest.mark.parametrize(
    ("sampler", "provenance", "expected"),
    [
        (AUTO, Provenance.MEASURED, RESIDUAL),
        (AUTO, Provenance.SIMULATED, TPE),
        (TPE, Provenance.MEASURED, TPE),
        (RESIDUAL, Provenance.SIMULATED, RESIDUAL),
    ],
)
def test_auto_is_residual_where_trials_are_measured(sampler: str, provenance: Provenance, expected: str) -> None:
    assert (
        replace(spec(), search=SearchSettings(sampler=sampler)).sampler_for(replace(INFO, provenance=provenance))
        == expected
    )
