"""What is shown of a study before it runs."""

from __future__ import annotations

import pytest

from tuner.errors import SettingError
from tuner.settings.study import StudySettings
from tuner.use_cases.preview import preview, preview_document, shown_metrics

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
