"""What a study is predicted to give on other cards: figures, prices, SLOs and failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from records.trials import Provenance, StudyRecord, TrialKind, TrialOutcome, TrialRecord
from search_spaces import Price
from tuner.use_cases.other_cards import CARDS, CardPrediction, other_cards
from tuner.workloads.spec import ClosedLoop

NOW = datetime(2026, 11, 1, tzinfo=UTC)
MODEL = "Qwen/Qwen2.5-7B-Instruct"
LOAD = ClosedLoop(max_concurrency=4, num_prompts=8, input_len=64, output_len=32)
GIVEN = Price(0.35)


def study(**facts: Any) -> StudyRecord:
    premise = {
        "workload": LOAD.model_dump(mode="json"),
        "slos": ["p99_tpot_ms<20", "quality>=0.9"],
        "engine": {"name": "vllm", "version": "0.25.1+cu130", "devices": ["NVIDIA L4"]},
    }
    found = {"hardware": "NVIDIA L4", "price": GIVEN.to_dict(), **facts}
    return StudyRecord("s", NOW, Provenance.MEASURED, premise, found, {"winner": 1})


def trial(number: int, kind: TrialKind, *flags: str) -> TrialRecord:
    argv = ("/venv/bin/vllm", "serve", MODEL, "--host", "127.0.0.1", "--port", "8000", *flags)
    outcome = TrialOutcome(NOW, NOW, Provenance.MEASURED, "w0", "NVIDIA L4", {}, "", argv=argv)
    return TrialRecord("s", number, 0, kind, None, {}, {}, 1, NOW, outcome)


TRIALS = [trial(0, TrialKind.BASELINE), trial(1, TrialKind.SEARCH, "--quantization", "fp8")]


def by_key(found: tuple[CardPrediction, ...]) -> Mapping[str, CardPrediction]:
    return {each.key: each for each in found}


def test_every_card_has_the_defaults_and_the_winner_with_their_cost() -> None:
    cards = by_key(other_cards(study(), TRIALS))
    assert tuple(cards) == CARDS
    assert {each.provenance for each in cards.values()} == {Provenance.SIMULATED}
    h100 = cards["h100"]
    assert h100.price is not None
    assert h100.price.per_gpu_hour == pytest.approx(6.88)
    for figures in (h100.defaults, h100.winner):
        assert figures is not None
        assert figures.output_throughput is not None
        expected = 6.88e6 / 3600 / figures.output_throughput
        assert figures.cost_per_million_output_tokens == pytest.approx(expected)
        # 64 tokens in for 32 out: 3 tokens for each output token
        assert figures.cost_per_million_total_tokens == pytest.approx(expected / 3)


def test_the_own_card_has_the_price_of_the_study_and_others_the_list_price() -> None:
    cards = by_key(other_cards(study(), TRIALS))
    assert [key for key, card in cards.items() if card.is_own] == ["l4"]
    assert cards["l4"].price == GIVEN
    others = [card.price for key, card in cards.items() if key != "l4"]
    assert [price for price in others if price is None or price.list_price is None] == []


def test_a_card_that_is_too_small_says_so() -> None:
    # 15.2 GB of weights do not fit beside anything else in 14.56 GiB; with 8 bits they do
    t4 = by_key(other_cards(study(), TRIALS))["t4"]
    assert t4.defaults is not None
    assert (t4.defaults.output_throughput, t4.defaults.cost_per_million_output_tokens) == (None, None)
    assert t4.defaults.failure
    assert t4.winner is not None
    assert t4.winner.failure is None


def test_slow_cards_miss_the_slo_and_nothing_unpredicted_counts_as_missed() -> None:
    # 15 GB of weights at 300 GB/s take 50 ms a token; an H100 takes 5
    cards = by_key(other_cards(study(), TRIALS))
    assert cards["l4"].defaults is not None
    assert cards["l4"].defaults.misses == ("p99_tpot_ms<20",)
    assert cards["h100"].defaults is not None
    assert cards["h100"].defaults.misses == ()


def test_a_t4_is_simulated_with_the_version_that_runs_there() -> None:
    versions = {key: card.vllm_version for key, card in by_key(other_cards(study(), TRIALS)).items()}
    assert versions["t4"] == "0.15.1"
    assert {version for key, version in versions.items() if key != "t4"} == {"0.25.1"}


def test_a_study_that_keeps_its_defaults_has_no_second_column() -> None:
    kept = replace(study(), conclusion={"winner": 0})
    assert [each.winner for each in other_cards(kept, TRIALS, ["h100"])] == [None]


def test_an_unknown_card_has_neither_an_own_row_nor_a_failure() -> None:
    cards = other_cards(study(hardware="My card"), TRIALS, ["l4"])
    assert [(each.is_own, each.price is not None and each.price.list_price is not None) for each in cards] == [
        (False, True)
    ]


def test_a_study_on_a_cpu_is_not_predicted() -> None:
    assert other_cards(study(hardware="CPU"), TRIALS) == ()
