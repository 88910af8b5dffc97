"""What a report and a bundle have of a study, and what is shown before it runs."""

import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from records.trials import FailureKind, ServerFacts, TrialKind
from storage import open_store
from storage.errors import StorageError
from storage.store import Store
from tests import store_samples as samples
from tests.recorded import SEVEN_B, recorded_study
from tuner.errors import SettingError
from tuner.processes.secrets import Secrets
from tuner.settings.study import StudySettings
from tuner.use_cases.bundle import cleaned
from tuner.use_cases.files import add_study, study_lines
from tuner.use_cases.preview import preview, preview_document, shown_metrics
from tuner.use_cases.report.charts import plotted_facts
from tuner.use_cases.report.reported import ReportedStudy

SECRETS = Secrets({"HF_TOKEN": "made-up-7f3a", "STORAGE_PASSWORD": "p@ss/wörd"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("token made-up-7f3a was refused", "token ${HF_TOKEN} was refused"),
        ("connects with p@ss/wörd now", "connects with ${STORAGE_PASSWORD} now"),
        ("HF_TOKEN=abc", "HF_TOKEN=***"),
        ("{'api_key': 'abc', 'model': 'm'}", "{'api_key': '***', 'model': 'm'}"),
        ("{'api_key': ['abc']}", "{'api_key': ['***']}"),
        ('"hf-token": "abc"', '"hf-token": "***"'),
        ("--api-key abc --port 8000", "--api-key *** --port 8000"),
        ("Authorization: Bearer abcdef123", "Authorization: Bearer ***"),
        ("login hf_abcdefghijklmnop failed", "login *** failed"),
        ("postgresql://bob:geheim@db.corp.example/t", "postgresql://bob:***@db.corp.example/t"),
    ],
)
def test_secrets_are_removed(text: str, expected: str) -> None:
    assert cleaned({"a": [text, 3, None, True]}, SECRETS) == {"a": [expected, 3, None, True]}


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve Qwen/Qwen2.5-0.5B --max-num-batched-tokens 8192 --api-key '${VLLM_API_KEY}'",
        "joules_per_output_token:40 and output_token: 0.25",
        "eos_token: None, max_tokens=512",
        "No such file: '/home/carol/models/q' on gpu-box-17 (10.20.30.41)",
        "keep the defaults: no finalist is better beyond the noise",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert cleaned(text, SECRETS) == text


@pytest.mark.parametrize("part", ["a", "a-", "a.", "key=", "://"])
def test_a_long_text_takes_no_long_time(part: str) -> None:
    began = time.process_time()
    cleaned(part * (100_000 // len(part)), SECRETS)
    assert time.process_time() - began < 10


def fill(store: Store) -> None:
    """A study with a retried trial, a failed, an infeasible and a pending one, and a round."""
    store.create_study(replace(samples.study(), conclusion={"winner": 0, "would_help": [], "keeps": None}))
    for number, round_, kind in ((0, 0, TrialKind.BASELINE), (0, 1, TrialKind.CONFIRM), (1, 0, TrialKind.SEARCH)):
        store.add_trial(replace(samples.pending(number, round_, kind=kind), label="named" if number else None))
        store.begin_attempt("s", number, round_)
    store.record_failed_attempt("s", 0, 0, 1, samples.failed(FailureKind.OUT_OF_MEMORY_STARTUP))
    store.begin_attempt("s", 0)
    outcome = samples.success(server=ServerFacts(kv_cache_tokens=4096, kv_usage_max=0.5))
    store.finish_trial("s", 0, 0, outcome, samples.verdict())
    store.finish_trial("s", 0, 1, samples.success(samples.repeat(0, None)), samples.verdict(None, 2.0))
    store.finish_trial("s", 1, 0, samples.failed(message="no\nmemory"), None)
    store.add_trial(samples.pending(3))
    store.begin_attempt("s", 3)


def test_every_record_is_the_same(tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "a.db"))) as one, closing(open_store(str(tmp_path / "b.db"))) as other:
        fill(one)
        lines = [json.loads(line) for line in study_lines(one, "s")]
        assert [[*line] for line in lines] == [["study"], ["attempt"], ["trial"], ["trial"], ["trial"], ["trial"]]
        add_study(other, lines)
        assert other.studies() == one.studies()
        assert other.trials("s") == one.trials("s")
        assert other.failed_attempts("s") == one.failed_attempts("s")
        assert [*study_lines(other, "s")] == [*study_lines(one, "s")]
        config = other.trials("s")[0].config
        assert [type(value) for value in config.values()] == [int, float, bool, str, type(None)]
        with pytest.raises(StorageError, match="already a study"):
            add_study(other, lines)


SMALL = {"max_concurrency": 4, "num_prompts": 8, "input_len": 64, "output_len": 32}


def small(**more: object) -> StudySettings:
    return StudySettings(**{**SMALL, **more})  # type: ignore[arg-type]


def test_a_simulated_study_is_shown_on_its_card() -> None:
    found = preview(small(engine="simulated", gpu="l4"), None)
    assert (found.card.key, found.simulated, found.refusal) == ("l4", True, None)
    assert found.defaults is not None
    assert (found.defaults.offered, found.defaults.completed) == (8, 8)
    assert found.defaults.vllm_version == found.version


def test_a_measured_study_is_shown_for_the_card_of_its_devices() -> None:
    found = preview(small(), "h200")
    document = preview_document(found)
    assert (document["would_be"], document["card"]) == ("measured", "NVIDIA H200")
    assert document["defaults"]["provenance"] == "simulated"
    assert {each["name"] for each in document["space"]["parameters"]} >= {"max_num_seqs", "kv_cache_dtype"}


def test_an_slo_is_met_missed_or_not_predicted() -> None:
    keywords = small(engine="simulated", slo=["p99_ttft_ms<0.001", "success_rate>=1", "quality>=0.9"])
    found = {each["slo"]: each["met"] for each in preview_document(preview(keywords, None))["slos"]}
    assert found == {"p99_ttft_ms<0.001": False, "success_rate>=1": True, "quality>=0.9": None}


def test_flags_that_do_not_start_have_no_prediction_but_a_reason() -> None:
    arguments = ["--max-num-batched-tokens", "64", "--no-enable-chunked-prefill"]
    found = preview(small(engine="simulated", server_arguments=arguments), None)
    assert found.defaults is None
    assert found.refusal is not None
    assert "64" in found.refusal


def test_a_preview_refuses_devices_that_are_not_known() -> None:
    with pytest.raises(SettingError, match="no preview"):
        preview(small(), "gpu")


def test_an_unknown_model_is_refused_where_it_would_be_simulated() -> None:
    with pytest.raises(SettingError) as caught:
        preview(small(engine="simulated", model="nobody/nothing-1b"), None)
    assert caught.value.field == "model"


def test_the_objectives_are_shown_first_and_once() -> None:
    shown = shown_metrics(["p99_itl_ms", "p99_tpot_ms"])
    assert shown[:2] == ["p99_itl_ms", "p99_tpot_ms"]
    assert len(shown) == len(set(shown))


SHARES = {"idle": [0.25, 0.125, 0.5], "strong": [0.75, 0.5, 0.875]}


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ReportedStudy:
    """A study whose importance, if computed, is that of a parameter `computed`."""
    monkeypatch.setattr("tuner.sampler.flag_effects.stored_importance", lambda url, name: {"computed": (1.0, 1.0, 1.0)})
    return replace(recorded_study("h200-7b.csv", SEVEN_B), url="sqlite:///unused.db")


def with_facts(study: ReportedStudy, **facts: Any) -> ReportedStudy:
    return replace(study, record=replace(study.record, facts={**study.record.facts, **facts}))


def test_the_stored_importance_is_shown_with_the_largest_first(study: ReportedStudy) -> None:
    found = with_facts(study, importance=SHARES, importance_trials=study.finished).importance
    assert list(found.items()) == [("strong", (0.75, 0.5, 0.875)), ("idle", (0.25, 0.125, 0.5))]


@pytest.mark.parametrize("facts", [{}, {"importance": SHARES}, {"importance": SHARES, "importance_trials": 1}])
def test_without_a_stored_one_of_all_trials_it_is_computed(study: ReportedStudy, facts: dict[str, Any]) -> None:
    assert list(with_facts(study, **facts).importance) == ["computed"]


def test_a_stored_absence_is_not_computed_again(study: ReportedStudy) -> None:
    assert with_facts(study, importance_trials=study.finished).importance == {}


def test_what_the_end_of_a_study_stores_is_read_again(study: ReportedStudy) -> None:
    stored = plotted_facts(study)
    assert stored["importance"] == {"computed": [1.0, 1.0, 1.0]}
    assert stored["importance_trials"] == sum(not trial.round for trial in study.trials if trial.outcome)
    assert with_facts(study, **stored).importance == {"computed": (1.0, 1.0, 1.0)}
