"""What a study learns of its host: lessons of measured trials, and predictions of later studies there."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from records.trials import (
    Config,
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
from storage import Store, open_store
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.flags import flag_names
from tuner.engines.simulator.learning import moved
from tuner.observers.host_learning import HostLearner, is_teachable, learned_host, learned_in, this_host
from tuner.results import text
from tuner.settings.study import StudySettings
from tuner.study.simulator_prior import server_with, simulator_of, simulator_prior
from tuner.study.specification.builder import build_spec
from tuner.study.specification.plan import plan_study
from tuner.study.specification.spec import StudySpec
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
    metrics = slow.metrics(*server_with(study, config, shape))
    assert metrics is not None
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
    learned = learned_host(store, later, INFO, ["node-1"])
    assert learned is not None
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


def test_other_hosts_versions_and_installations_learn_nothing(store: Store) -> None:
    run(store, "first", 2)
    learn(store, "first")
    assert learned_host(store, spec("later"), INFO, ["node-2"]) is None
    assert learned_host(store, spec("later"), replace(INFO, version="0.25.1"), ["node-1"]) is None
    assert learned_host(store, spec("later"), replace(INFO, executable="/other"), ["node-1"]) is None
    found = learned_in(store, "node-1", CARD, "0.15.1")
    assert found is not None
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
