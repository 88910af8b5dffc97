"""Sources of a search's prior: the simulator, and other studies."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from records.trials import Failure, FailureKind, Phase, Provenance, StudyRecord, TrialKind
from search_spaces import HardwareProfile, hardware_named, load_space
from tests.some import some
from tests.unit.study.conftest import PLAIN, Bench
from tests.unit.study.test_run import FIGURES, peak_at_16
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.flags import flag_names
from tuner.errors import UserError
from tuner.scoring.goals import FAILED
from tuner.settings.study import AUTO, RESIDUAL, TPE, SearchSettings, StudySettings
from tuner.specs import TrialSpec
from tuner.study import source_studies as module
from tuner.study.simulator_prior import PREDICTED_FAILURE, simulator_prior, simulator_prior_of_source
from tuner.study.source_studies import SourceStudy, source_studies
from tuner.study.specification.builder import build_spec
from tuner.study.specification.plan import plan_study
from tuner.study.specification.resolve_workload import make_goals
from tuner.study.specification.spec import Enqueued, StudySpec, with_stored_settings

INFO = EngineInfo("vllm", "0.15.1", None, flag_names(), Provenance.MEASURED, frozenset({"flashinfer"}))


def spec(card: HardwareProfile | None = None, **changes: object) -> StudySpec:
    plan = plan_study(StudySettings(search_load=1.0, **changes), simulated=True)  # type: ignore[arg-type]
    return build_spec(plan, INFO, card or hardware_named("t4"), Path("artifacts"))


@pytest.fixture(scope="module")
def predict():  # type: ignore[no-untyped-def]
    return some(simulator_prior(spec(), INFO))


def test_the_default_preset_is_predicted_as_the_simulator_does(predict) -> None:  # type: ignore[no-untyped-def]
    prediction = predict({})
    assert prediction.values[0] == pytest.approx(3400, rel=0.1)  # published: 3,332 tok/s
    assert all(violation <= 0 for violation in prediction.constraints.values())


def test_answers_are_predicted_to_be_kept() -> None:
    slos = ("quality>=0.99", "p99_tpot_ms<50")
    prior = some(simulator_prior(spec(slo=slos), INFO))
    prediction = some(prior({}))
    assert prediction.constraints["quality>=0.99"] == pytest.approx(-0.01, abs=0.001)


def test_eager_execution_is_predicted_to_be_slower(predict) -> None:  # type: ignore[no-untyped-def]
    assert predict({"cudagraph_mode": "eager"}).values[0] < 0.9 * predict({}).values[0]


def test_a_model_that_does_not_fit_the_gpu_is_predicted_to_fail() -> None:
    predict = some(simulator_prior(spec(model="Qwen/Qwen2.5-14B-Instruct"), INFO))
    assert predict({}) == PREDICTED_FAILURE


def test_what_the_simulator_does_not_model_is_unknown_and_no_failure() -> None:
    info = replace(INFO, version="0.25.1", flags=None)
    plan = plan_study(StudySettings(space="vllm-extra"), simulated=True)
    prior = some(simulator_prior(build_spec(plan, info, hardware_named("h200"), Path("artifacts")), info))
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

    predict = some(simulator_prior(spec(), INFO))
    monkeypatch.setattr("tuner.study.simulator_prior.build_server", fail)
    assert predict({}) is None
    assert predict({"block_size": 32}) is None
    (warning,) = caplog.records
    assert warning.getMessage() == "no prediction of {}, the simulator failed: ZeroDivisionError: "
    assert not warning.exc_info


def test_a_simulated_study_is_predicted_with_other_parameters_than_it_is_simulated_with(predict) -> None:  # type: ignore[no-untyped-def]
    simulated = replace(INFO, provenance=Provenance.SIMULATED)

    def of_seed(seed: int) -> float:
        prior = some(simulator_prior(spec(seed=seed), simulated))
        prediction = some(prior({}))
        return some(prediction.values)[0]

    first, again, other = of_seed(0), of_seed(0), of_seed(1)
    truth = predict({}).values[0]
    assert first == again
    assert len({first, other, truth}) == 3
    assert first == pytest.approx(truth, rel=0.5)
    assert other == pytest.approx(truth, rel=0.5)


def test_an_unknown_gpu_has_no_prior() -> None:
    card = replace(hardware_named("t4"), tflops={})
    assert simulator_prior(spec(card), INFO) is None


def test_an_unknown_version_has_no_prior() -> None:
    assert simulator_prior(spec(), replace(INFO, version="dev")) is None


def test_capacity_has_no_prior() -> None:
    capacity = spec(preset="qwen2.5-14b-ada-mixed", card=hardware_named("rtx6000ada"), objective=("capacity",))
    assert simulator_prior(capacity, INFO) is None


@pytest.mark.parametrize(("sampler", "expected"), [(AUTO, RESIDUAL), (TPE, TPE), (RESIDUAL, RESIDUAL)])
def test_auto_stands_for_residual(sampler: str, expected: str) -> None:
    assert replace(spec(), search=SearchSettings(sampler=sampler)).sampler == expected


ENGINE = EngineInfo("vllm", "1", None, None, Provenance.SIMULATED)
NARROW = """
description: another study's space
parameters:
  max_num_seqs: {description: d, type: int, low: 1, high: 20, log: true, flag: --max-num-seqs, engine_default: 8}
  dtype: {description: d, type: categorical, choices: [null, half], flag: --dtype}
"""


def source_of(bench: Bench, **changes: Any) -> SourceStudy:
    """Return the study `s` as the source of a new study."""
    store = bench.store()
    try:
        [source] = source_studies(store, bench.spec(name="new", learn_from=("s",), **changes), ENGINE)
        return source
    finally:
        store.close()


def out_of_memory_at_64(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
    if spec.config.get("block_size") == 64:
        return Failure(FailureKind.OUT_OF_MEMORY_STARTUP, Phase.READY, "no memory")
    return peak_at_16(spec, index)


GIVEN = tuple(
    Enqueued(f"e{seqs}", {"max_num_seqs": seqs, "block_size": size}) for seqs, size in [(16, 32), (8, 64), (40, 16)]
)


def test_the_defaults_come_first_with_the_engines_known_values(bench: Bench) -> None:
    bench.run(out_of_memory_at_64, trials=4, enqueue=GIVEN)
    history = source_of(bench).history
    # The space has the engine's default of max_num_seqs only.
    assert history.measured == [
        {"max_num_seqs": 32},
        {"max_num_seqs": 16, "block_size": 32},
        {"max_num_seqs": 40, "block_size": 16},
    ]
    assert history.values == [(1001.0, 10.0), (1500.0, 10.0), (1020.0, 10.0)]
    assert history.constraints[0] == pytest.approx({"p99_tpot_ms<50": 10 / 50 - 1, "success_rate>=1": 0.0})
    assert history.failed == [{"max_num_seqs": 8, "block_size": 64}]


def test_values_and_constraints_are_those_of_the_new_objectives_and_slos(bench: Bench) -> None:
    bench.run(peak_at_16, trials=4, enqueue=GIVEN)
    goals = make_goals(["p99_tpot_ms"], ["p99_tpot_ms<5", "p99_ttft_ms<100"])
    history = source_of(bench, goals=goals).history
    assert history.values[0] == (10.0,)
    assert history.constraints[0] == {"p99_tpot_ms<5": 1.0}  # no TTFT was measured, so it has no constraint
    assert FAILED not in history.constraints[0]


def test_trials_outside_the_new_space_are_left_out_and_counted(bench: Bench, tmp_path: Path) -> None:
    bench.run(peak_at_16, trials=4, enqueue=GIVEN, confirm_rounds=0)
    file = tmp_path / "narrow.yaml"
    file.write_text(NARROW)
    source = source_of(bench, space=load_space(file).resolve(PLAIN))
    # Enqueued trials leave the dtype to the engine; 40 sequences are more than 20.
    assert source.history.measured == [
        {"max_num_seqs": 8, "dtype": None},
        {"max_num_seqs": 16, "dtype": None},
        {"max_num_seqs": 8, "dtype": None},
    ]
    assert str(source) == "warm start from 3 trials of study s; 1 more lie outside this study's space"


def test_of_a_long_study_the_defaults_the_best_and_an_even_spread_of_the_rest_are_used(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tuple(Enqueued(f"e{seqs}", {"max_num_seqs": seqs, "block_size": 16}) for seqs in range(1, 13))
    bench.run(peak_at_16, trials=13, enqueue=given, confirm_rounds=0)
    monkeypatch.setattr(module, "SOURCE_TRIALS", 7)
    monkeypatch.setattr(module, "LEAST_OF_EACH", 1)
    taken = [config["max_num_seqs"] for config in source_of(bench).history.measured]
    assert taken == [32, 12, 11, 10, 1, 4, 7]  # the nearer to 16, the better


UNSUITABLE: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    (("t",), {}, "learn_from='t': the database has no study of this name; `tuner study list` lists them"),
    (
        ("new",),
        {},
        "learn_from='new': a study uses its own trials anyway; leave it out, or choose another name by study",
    ),
    (("s",), {"sampler": TPE}, "sampler='tpe': only residual uses source studies; leave out learn_from"),
    (
        ("s",),
        {"goals": make_goals(["goodput"], ["p99_tpot_ms<5"])},
        "learn_from='s': fewer than 2 of its trials lie in this study's space and have goodput; leave it out",
    ),
]


def test_an_unsuitable_source_is_refused(bench: Bench) -> None:
    bench.run(peak_at_16, trials=3, confirm_rounds=0)
    store = bench.store()
    for names, changes, message in UNSUITABLE:
        with pytest.raises(UserError) as refused:
            source_studies(store, bench.spec(name="new", learn_from=names, **changes), ENGINE)
        assert str(refused.value) == message
    with pytest.raises(UserError, match="'s': it was simulated, this study is measured; leave it out"):
        source_studies(
            store, bench.spec(name="new", learn_from=("s",)), replace(ENGINE, provenance=Provenance.MEASURED)
        )
    store.close()


def test_without_a_named_source_there_is_none(bench: Bench) -> None:
    store = bench.store()
    assert source_studies(store, bench.spec(sampler=TPE), ENGINE) == []
    store.close()


def test_a_warm_started_study_begins_at_the_best_of_its_source_and_keeps_the_source(bench: Bench) -> None:
    bench.run(peak_at_16, trials=16, sampler=RESIDUAL, confirm_rounds=0)
    best = max(bench.records(), key=lambda record: (record.verdict and record.verdict.score) or 0.0)
    assert best.kind is TrialKind.SEARCH
    assert abs(best.config["max_num_seqs"] - 16) <= 4  # type: ignore[operator]

    bench.run(peak_at_16, trials=2, name="new", learn_from=("s",), confirm_rounds=0)
    store = bench.store()
    try:
        [_, first] = [record for record in store.trials("new") if not record.round]
        known = store.study("new")
        assert abs(first.config["max_num_seqs"] - 16) <= 5  # type: ignore[operator]
        assert bench.listener.notes == ["warm start from 16 trials of study s"]
        assert known is not None
        assert known.facts["learn_from"] == ["s"]
        assert with_stored_settings(bench.spec(name="new"), store).search.learn_from == ("s",)
        assert with_stored_settings(bench.spec(name="new", learn_from=("t",)), store).search.learn_from == ("t",)
        assert with_stored_settings(bench.spec(), store).search.learn_from == ()
    finally:
        store.close()


def on_a_t4(record: StudyRecord, **changes: Any) -> StudyRecord:
    engine = {"name": "vllm", "version": "0.15.1", "devices": ["Tesla T4"]}
    return replace(record, premise={**record.premise, "engine": engine}, facts={"hardware": "Tesla T4", **changes})


def test_a_source_trial_is_predicted_by_its_command(bench: Bench) -> None:
    """The prediction of the defaults equals that of the study's own prior; eager execution is slower."""
    predicted = spec()
    prior = simulator_prior(predicted, replace(INFO, provenance=Provenance.SIMULATED))
    bench.run(lambda _, index: {**FIGURES, "output_throughput": 1.0}, trials=1)
    store = bench.store()
    record, trial = store.study("s"), store.trial("s", 0)
    store.close()
    assert record is not None
    assert trial is not None
    assert trial.outcome is not None
    record = on_a_t4(replace(record, premise={**record.premise, "workload": predicted.workload.model_dump()}))
    command = ("/opt/bin/vllm", "serve", "Qwen/Qwen2.5-0.5B", "--host", "127.0.0.1", "--port", "8123")
    argv = (*command, *predicted.server.arguments, "--enforce-eager")
    predict = some(simulator_prior_of_source(record, predicted, INFO.packages))
    assert prior is not None

    eager = predict(replace(trial, outcome=replace(trial.outcome, argv=argv)))
    plain = predict(replace(trial, outcome=replace(trial.outcome, argv=argv[:-1])))
    assert plain == prior({})
    assert plain is not None
    assert eager is not None
    assert some(eager.values)[0] < 0.9 * some(plain.values)[0]
    assert predict(replace(trial, outcome=replace(trial.outcome, argv=()))) is None


def test_a_source_on_an_unsupported_gpu_has_no_predictions(bench: Bench) -> None:
    bench.run(peak_at_16, trials=1, confirm_rounds=0)
    store = bench.store()
    record = store.study("s")
    store.close()
    assert record is not None
    assert hardware_named("cpu").tflops == {}
    for hardware in ("a card of tomorrow", "cpu"):
        assert simulator_prior_of_source(on_a_t4(record, hardware=hardware), bench.spec(), None) is None
