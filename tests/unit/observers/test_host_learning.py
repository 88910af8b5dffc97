"""What a study learns of its host: lessons of measured trials, and the predictions of it and of later studies there."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from records.trials import (
    Config,
    Failure,
    Provenance,
    Repeat,
    ServerFacts,
    StudyRecord,
    TrialKind,
    TrialOutcome,
    TrialRecord,
    Verdict,
)
from search_spaces import hardware_named
from storage import Store, normalise_url, open_store
from tests.fakes.stub_engine import StubEngine
from tests.some import some
from tuner.cancellation import Wishes
from tuner.clock import RealClock
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.flags import flag_names
from tuner.engines.simulator.learning import HostPosterior, moved
from tuner.executors.base import InlineExecutor
from tuner.observers import host_learning
from tuner.observers.host_learning import HostLearner, is_teachable, learned_host, learned_in, this_host
from tuner.results import text
from tuner.sampler.prior import Prior
from tuner.settings.study import TPE, StudySettings
from tuner.specs import TrialSpec
from tuner.study.learned_prior import Learned, LearnedPrior
from tuner.study.optuna_study import OptunaStudy, RunningTrial
from tuner.study.run import open_study, run_study
from tuner.study.simulator_prior import SimulatorPrior, server_with, simulator_of, simulator_prior
from tuner.study.specification.builder import build_spec
from tuner.study.specification.plan import plan_study
from tuner.study.specification.spec import Budget, Enqueued, StudySpec
from tuner.use_cases.preview import simulation_document
from tuner.use_cases.simulate import simulate

CARD = hardware_named("t4")
INFO = EngineInfo("vllm", "0.15.1", "/opt/vllm", flag_names(), Provenance.MEASURED, frozenset({"flashinfer"}))
NOW = datetime(2026, 11, 28, 8, tzinfo=UTC)
SPEEDS = {"host_speed": -0.5}
"""The host of these tests has 0.61 of the stored speed."""
CONFIGS: tuple[Config, ...] = (
    {},
    {"cudagraph_mode": "eager"},
    {"max_num_seqs": 8},
    {"max_num_seqs": 16},
    {"cudagraph_mode": "PIECEWISE"},
)


def spec(name: str) -> StudySpec:
    settings = StudySettings(study=name, max_concurrency=20, num_prompts=40, temperature=0.0)
    return build_spec(plan_study(settings, simulated=True), INFO, CARD, Path("artifacts"))


def measured(study: StudySpec, config: Config, number: int) -> TrialOutcome:
    """A trial as the slow host would measure it."""
    simulator, shape = simulator_of(replace(study, workload=study.searched_workload), INFO), study.space.context.model
    assert simulator is not None
    assert shape is not None
    slow = replace(simulator, platform=moved(simulator.platform, SPEEDS))
    metrics = some(slow.metrics(*server_with(study, config, shape)))
    repeat = Repeat(0, simulator.workload.repeat_seed(0), 40, 40, 0, 10.0, metrics)
    ended = NOW + timedelta(minutes=number)
    return TrialOutcome(ended, ended, Provenance.MEASURED, "w0@node-1", CARD.name, {}, "", repeats=(repeat,))


def run(store: Store, name: str, count: int, provenance: Provenance = Provenance.MEASURED) -> list[TrialRecord]:
    """Store a study with finished trials."""
    study = spec(name)
    store.create_study(StudyRecord(name, NOW, provenance, {}, {}))
    for number, config in enumerate(CONFIGS[:count]):
        kind = TrialKind.SEARCH if number else TrialKind.BASELINE
        store.add_trial(TrialRecord(name, number, 0, kind, None, config, config, 0, NOW))
        outcome = replace(measured(study, config, number), provenance=provenance)
        store.finish_trial(name, number, 0, outcome, Verdict({"output_throughput": 1.0}, {}, 1.0))
    return store.trials(name)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine would compute no lesson before a learner's patience ends."""
    monkeypatch.setattr(host_learning, "_PATIENCE_S", 600.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(str(tmp_path / "s.db"))
    yield opened
    opened.close()


def learn(store: Store, name: str, info: EngineInfo = INFO) -> None:
    """Compute the lessons of every trial of a study, as a run that goes on with it does."""
    HostLearner(store, spec(name), info).close()


def test_a_later_study_predicts_the_host_that_an_earlier_one_measured(store: Store) -> None:
    run(store, "first", 5)
    learn(store, "first")
    assert set(store.lessons_of("first")) == {(number, 0) for number in range(5)}
    later = spec("later")
    learned = some(learned_host(store, later, INFO, ["node-1"]))
    assert learned.trials == 5
    assert learned.point["host_speed"] == pytest.approx(-0.5, abs=0.15)
    before, after = simulator_prior(later, INFO), simulator_prior(replace(later, learned=learned), INFO)
    assert before is not None
    assert after is not None
    unseen: Config = {"cudagraph_mode": "PIECEWISE", "max_num_seqs": 12}
    real = measured(later, unseen, 0).repeats[0].metrics["output_throughput"]
    errors = [abs(prior(unseen).values[0] / real - 1) for prior in (before, after)]  # type: ignore
    assert errors[0] > 0.4
    assert errors[1] < 0.15


def test_a_lesson_is_computed_again_where_it_puts_the_host(store: Store) -> None:
    run(store, "first", 2)
    learn(store, "first")
    lesson = store.lessons_of("first")[1, 0]  # without CUDA graphs, whose steps wait for the host
    assert lesson.point["launch_us"] > 0.05
    assert abs(lesson.errors["mean_tpot_ms"]) < 0.02  # 0.10 at the stored parameters


def test_other_hosts_versions_and_installations_learn_nothing(store: Store) -> None:
    run(store, "first", 2)
    learn(store, "first")
    assert learned_host(store, spec("later"), INFO, ["node-2"]) is None
    assert learned_host(store, spec("later"), replace(INFO, version="0.25.1"), ["node-1"]) is None
    assert learned_host(store, spec("later"), replace(INFO, executable="/other"), ["node-1"]) is None
    found = some(learned_in(store, "node-1", CARD, "0.15.1"))
    assert found.trials == 2
    assert learned_in(store, None, CARD, "0.15.1") is None, this_host()


def test_a_resumed_study_predicts_as_it_began(store: Store) -> None:
    run(store, "first", 2)
    learn(store, "first")
    assert learned_host(store, spec("first"), INFO, ["node-1"]) is None


def test_a_simulated_study_teaches_and_learns_nothing(store: Store) -> None:
    simulated = replace(INFO, provenance=Provenance.SIMULATED)
    run(store, "first", 2, Provenance.SIMULATED)
    learn(store, "first", simulated)
    assert store.lessons_of("first") == {}
    run(store, "second", 1)
    learn(store, "second")
    assert learned_host(store, spec("later"), simulated, ["node-1"]) is None


def test_only_whole_and_settled_trials_teach(store: Store) -> None:
    [record] = run(store, "first", 1)
    assert record.outcome is not None
    assert is_teachable(record)
    unsettled = replace(record.outcome, server=ServerFacts(warmup_settled=False))
    lossy = replace(record.outcome, repeats=(replace(record.outcome.repeats[0], failed=1),))
    for outcome in (None, unsettled, lossy, replace(record.outcome, repeats=())):
        assert not is_teachable(replace(record, outcome=outcome))
    assert not is_teachable(replace(record, kind=TrialKind.CAPACITY))


def test_drafts_tell_nothing_of_a_host(store: Store) -> None:
    [record] = run(store, "first", 1)
    drafts = replace(record, config={"speculative": "ngram", "ngram_tokens": 3, "ngram_max": 3, "ngram_min": 1})
    learner = HostLearner(store, spec("first"), INFO)
    assert learner.lesson(record) is not None
    assert learner.lesson(drafts) is None
    learner.close()


def test_a_what_if_uses_the_lessons_of_the_host_and_says_so(store: Store) -> None:
    run(store, "first", 5)
    learn(store, "first")
    asked = StudySettings(gpu="t4", vllm_version="0.15.1", num_prompts=40, server_arguments=("--enforce-eager",))
    stored = simulate(asked)
    here = simulate(asked, learned=partial(learned_in, store, "node-1"))
    assert here.metrics["mean_tpot_ms"] > stored.metrics["mean_tpot_ms"]  # type: ignore[operator]
    assert not stored.error_bands.errors
    assert 0.05 < here.error_bands.errors["mean_tpot_ms"] < 1.0
    document = simulation_document(here)
    assert (document["learned"]["host"], document["learned"]["trials"]) == ("node-1", 5)
    assert text.learned(document["learned"]).startswith("5 measured trials on node-1: host_speed ×0.")
    assert simulation_document(stored)["learned"] is None


def test_a_study_predicts_with_its_own_trials_and_a_resumed_one_with_the_same(store: Store) -> None:
    run(store, "first", 5)
    notes: list[str] = []
    learner = HostLearner(store, spec("first"), INFO, notes.append)
    found = some(learner.learned())
    assert found.trials == 5, "the first four wait for the GPU, and hardly move a prediction"
    assert found.point["host_speed"] == pytest.approx(-0.5, abs=0.15)
    assert learner.learned() is found
    assert notes == [f"predictions are corrected by {text.learned(found.to_dict())}"]
    learner.close()
    stored = some(store.study("first"))
    assert stored.facts["learned"] == found.to_dict()
    again = HostLearner(store, spec("first"), INFO)
    resumed = again.learned()
    again.close()
    assert resumed is not None
    assert resumed.lessons == found.lessons
    assert resumed.point == found.point


def test_a_simulated_study_predicts_with_nothing(store: Store) -> None:
    run(store, "first", 2, Provenance.SIMULATED)
    learner = HostLearner(store, spec("first"), replace(INFO, provenance=Provenance.SIMULATED))
    assert learner.learned() is None
    learner.close()


H200 = hardware_named("h200")
H200_INFO = EngineInfo("vllm", "0.25.1", "/opt/vllm", flag_names(), Provenance.MEASURED, frozenset())
SLOW = {"host_speed": -0.9}
FP8, BIGGER = Enqueued("fp8", {"quantization": "fp8"}), Enqueued("bigger", {"performance_mode": "throughput"})
"""Recipes of a small model with 24 users: beside the usual host, FP8 weights gain 3.6 % and larger graphs 2.2 %.

A slow host does not wait for weights. FP8 gains nothing there, and larger graphs 8 %.
"""


class SlowMachine(StubEngine):
    """Measures what the simulator predicts beside a slow host."""

    def __init__(self, study: StudySpec) -> None:
        simulator = some(simulator_of(replace(study, workload=study.searched_workload), H200_INFO))
        self._slow = replace(simulator, platform=moved(simulator.platform, SLOW))
        self._study = study
        super().__init__(self._measure)

    def info(self) -> EngineInfo:
        return H200_INFO

    def _measure(self, trial: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        shape = some(self._study.space.context.model)
        metrics = some(self._slow.metrics(*server_with(self._study, trial.config, shape)))
        return {**metrics, "success_rate": 1.0}


def slow_study(store: Store, folder: Path, recipes: tuple[Enqueued, ...] = (FP8, BIGGER)) -> StudySpec:
    """Open a study of the slow machine."""
    settings = StudySettings(
        study="s",
        model="Qwen/Qwen2.5-1.5B-Instruct",
        max_concurrency=24,
        num_prompts=48,
        input_len=512,
        output_len=64,
        temperature=0.0,
        objective=("output_throughput",),
        confirm_rounds=0,
        sampler=TPE,  # whose suggestions need no predictions
    )
    built = build_spec(plan_study(settings, simulated=True, card="h200"), H200_INFO, H200, folder / "artifacts")
    study = replace(built, recipes=recipes)
    open_study(store, study, H200_INFO, [H200.name], RealClock())
    return study


def run_slowly(
    store: Store,
    folder: Path,
    study: StudySpec,
    budget: Budget,
    observer: HostLearner,
    wishes: Wishes,
    learned: Learned,
) -> None:
    """Run a study on the slow machine."""
    executor, url = InlineExecutor(lambda slot: SlowMachine(study), 1), normalise_url(str(folder / "s.db"))
    run_study(study, H200_INFO, budget, store, url, executor, observer, wishes, learned=learned)
    executor.close()
    observer.close()


def labels_of_a_run(store: Store, folder: Path, learns: bool, most: int) -> list[str | None]:
    """Run or resume a study on the slow machine until `most` trials have ended; return their labels, in order."""
    study, stop = slow_study(store, folder), threading.Event()

    class Learner(HostLearner):
        def finished(self, record: TrialRecord) -> None:
            super().finished(record)
            if len(store.trials("s", finished=True)) >= most:
                stop.set()

    learner = Learner(store, study, H200_INFO)
    learned = learner.learned if learns else lambda: None
    run_slowly(store, folder, study, Budget(trials=10), learner, Wishes(stop), learned)
    return [record.label for record in store.trials("s", finished=True)]


@pytest.mark.parametrize(
    ("learns", "second"), [(False, "recipe: fp8 + bigger"), (True, "recipe: bigger + fp8")], ids=["without", "with"]
)
def test_the_second_trial_of_a_study_uses_the_lesson_of_its_first(
    store: Store, tmp_path: Path, learns: bool, second: str
) -> None:
    assert labels_of_a_run(store, tmp_path, learns, most=2) == ["defaults", second]


def test_a_resumed_study_goes_on_with_the_recipes_of_an_uninterrupted_one(store: Store, tmp_path: Path) -> None:
    labels_of_a_run(store, tmp_path, learns=True, most=1)
    assert labels_of_a_run(store, tmp_path, learns=True, most=3)[1:] == ["recipe: bigger + fp8", "recipe: bigger"]


def test_only_the_first_correction_is_waited_for(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of predictions change with a correction; a GPU that waits for them measures nothing."""
    study, events = slow_study(store, tmp_path, recipes=()), list[str]()

    class Learner(HostLearner):
        def finished(self, record: TrialRecord) -> None:
            super().finished(record)
            events.append("finished")

    class Recorded(OptunaStudy):
        def use_prior(self, prior: Prior | None, spread: float = 1.0) -> None:
            events.append("renewed")
            super().use_prior(prior, spread)

        def ask(self) -> RunningTrial:
            events.append("suggested")
            return super().ask()

    def always_new() -> HostPosterior | None:
        found = learner.learned()
        return None if found is None else replace(found)

    monkeypatch.setattr("tuner.study.run.OptunaStudy", Recorded)
    learner = Learner(store, study, H200_INFO)
    run_slowly(store, tmp_path, study, Budget(trials=4), learner, Wishes(), always_new)
    first, later = ["renewed", "suggested"], ["suggested", "renewed"]
    assert events == ["renewed", "finished", *first, "finished", *later, "finished", *later, "finished", "renewed"]


def test_a_stopped_study_predicts_nothing(store: Store, tmp_path: Path) -> None:
    stop = threading.Event()
    prior = some(LearnedPrior(slow_study(store, tmp_path), H200_INFO, stop=stop).prior)
    assert prior({}) is not None
    stop.set()
    assert prior({}) is None


def test_a_stopped_learner_ends_with_its_prediction(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lesson takes one prediction for each parameter, of seconds each under much traffic."""
    [record] = run(store, "first", 1)
    begun, go_on, stop, predictions = threading.Event(), threading.Event(), threading.Event(), list[object]()

    def slow_metrics(*arguments: object) -> dict[str, float | None]:
        predictions.append(arguments)
        begun.set()
        assert go_on.wait(60)
        return {"output_throughput": 1.0}

    monkeypatch.setattr(SimulatorPrior, "metrics", slow_metrics)
    learner = HostLearner(store, spec("first"), INFO, stop=stop)
    learner.finished(record)
    assert begun.wait(60)
    stop.set()
    assert learner.learned() is None
    go_on.set()
    learner.close()
    assert len(predictions) == 1
    assert store.lessons_of("first") == {}
