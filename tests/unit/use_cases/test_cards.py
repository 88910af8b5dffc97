"""What a study is predicted to give on other cards or with other settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dashboards.report.page import Figure
from records.trials import Provenance, StudyRecord, TrialKind, TrialOutcome, TrialRecord
from search_spaces import Price
from tests.recorded import MIX, SEVEN_B, recorded_study
from tuner.engines.factory import EngineFactory
from tuner.settings.study import StudySettings
from tuner.study.specification.builder import build_spec
from tuner.study.specification.plan import plan_study
from tuner.use_cases.engines import simulated_engine
from tuner.use_cases.other_cards import CARDS, CardPrediction, measured_place, other_cards
from tuner.use_cases.report.charts import cards_parts
from tuner.use_cases.report.page import origin_of, page_of
from tuner.use_cases.would_help import LEAST_GAIN, SHOWN, would_help
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


MIXED = "h200-mix-reduced.csv"


def test_the_recorded_defaults_by_hand() -> None:
    """The defaults of the search of the mix on an H200: row 0 of `h200-mix-reduced.csv`.

    23.0279 requests a second have 3,062.14 output and 22,509.76 input tokens, 44.058 % of these cached, a TTFT of
    48.0 ms and an E2EL of 1,064.1 ms. So 3,039.1 tokens a second are decoded by a batch of 23.0279 x 1.01611 = 23.4,
    in 129.9 steps, each with a context of (22,509.76 + 1,531.07) / 23.0279 = 1,044 tokens.

    Qwen2.5-7B has 28 layers of 233,046,016 parameters, a head of 544,997,376, attention of 4 x 28 x 128 x 28 = 401,408
    FLOP a pair, and a cache of 2 x 28 x 4 x 128 x 2 = 57,344 bytes a token:
    FLOP/s  = 13.05e9 x 15,632 + 1.090e9 x 3,062 + 401,408 x (8.87e6 + 3.17e6) = 212e12
    bytes/s = 14.14e9 x 129.9 + 57,344 x 3.17e6 = 2.02e12, which is 105 FLOP a byte.
    """
    study = recorded_study(MIXED, MIX)
    defaults = study.findings.trial(0)
    assert defaults is not None
    assert defaults.outcome is not None
    point = measured_place(study.record, defaults.outcome)
    assert point.batch == pytest.approx(23.40, abs=0.01)
    assert point.context == pytest.approx(1044.0, abs=0.5)
    assert point.roofline is not None
    assert point.roofline.flops == pytest.approx(212.2e12, rel=2e-3)
    assert point.roofline.intensity == pytest.approx(105.1, rel=3e-3)
    assert point.roofline.roof == "memory"


def test_measured_points_stand_beside_the_predicted_ones() -> None:
    study = recorded_study(MIXED, MIX)
    figure = next(part for part in cards_parts(study, origin_of(study)) if isinstance(part, Figure))
    names = [str(trace.name).rpartition(":")[0] for trace in figure.figure.data[1:]]
    reference, winner = study.compared
    assert names == ["defaults, predicted", "winner, predicted", f"{reference}, measured", f"{winner}, measured"]
    assert figure.source.startswith("Predicted by the simulator for NVIDIA H200. Measured on NVIDIA H200, vLLM 0.25.1")
    assert f"{reference} decodes " in figure.note


def test_without_a_command_the_section_says_why() -> None:
    """The rows of `h200-7b.csv` have no command."""
    study = recorded_study("h200-7b.csv", SEVEN_B)
    sentences = [part for part in cards_parts(study, origin_of(study)) if isinstance(part, str)]
    assert sentences == [
        f"No measured point on the roofline for {name}: the trial has no command of a server."
        for name in study.compared
    ]


def test_an_unknown_device_has_a_reason() -> None:
    study = recorded_study(MIXED, MIX)
    on_cpu = replace(study, record=replace(study.record, facts={"devices": ["cpu"]}))
    reasons = {point.lacking for point in on_cpu.measured_points.values()}
    assert reasons == {"the peak and the bandwidth of its device are not known"}


def test_a_simulated_study_has_no_measured_point() -> None:
    study = recorded_study(MIXED, MIX)
    simulated = replace(study, record=replace(study.record, provenance=Provenance.SIMULATED))
    assert simulated.measured_points == {}


def test_every_figure_says_where_its_numbers_come_from() -> None:
    page = page_of(recorded_study(MIXED, MIX))
    figures = [part for section in page.sections for part in section.parts if isinstance(part, Figure)]
    assert len(figures) > 5
    assert [figure.title for figure in figures if not figure.source.startswith(("Measured on", "Predicted by"))] == []


SMALL: dict[str, Any] = {"max_concurrency": 20, "num_prompts": 40, "input_len": 128, "output_len": 256}


def lines_of(settings: StudySettings, gpu: str | None = None, base: dict[str, Any] | None = None) -> list[str]:
    """Return the lines of a simulated study that keeps its reference."""
    engine_settings, devices = simulated_engine(gpu, None, settings.preset, 1)
    engine = EngineFactory(engine_settings)(0).info()
    plan = plan_study(settings, simulated=True, card=devices.profile.key)
    spec = build_spec(plan, engine, devices.profile, Path("artifacts"))
    return [*would_help(plan, spec, engine, base or {})]


def ratio(line: str, name: str) -> float:
    found = re.search(rf"{name} ×([\d.]+)", line)
    assert found is not None, line
    return float(found[1])


def test_the_default_study_could_gain_twice_the_throughput_by_greedy_decoding_with_speculation() -> None:
    found = lines_of(StudySettings())
    assert found[0].startswith(
        "greedy decoding (temperature 0) with suffix speculation (changes the answers): score ×1.5"
    )
    # The simulator is fitted to 3,332 and 7,800 tok/s: x2.3.
    assert ratio(found[0], "output_throughput") == pytest.approx(2.24, abs=0.15)
    assert len(found) <= SHOWN
    assert min(ratio(line, "score") for line in found) >= round(LEAST_GAIN, 2)


def test_what_the_study_could_try_is_not_shown() -> None:
    assert [line for line in lines_of(StudySettings(temperature=0.0)) if "speculation" in line] == []
    only = StudySettings(temperature=0.0, only=("max_num_seqs",))
    assert lines_of(only)[0].startswith("suffix speculation: score ×")


def test_formats_that_keep_answers_forbade_are_shown() -> None:
    for keep, count in ((False, 0), (True, 1)):
        settings = StudySettings(model="Qwen/Qwen2.5-14B-Instruct", keep_answers=keep, **SMALL)
        assert sum(line.startswith("FP8 weights") for line in lines_of(settings, "h100")) == count


def test_no_line_misses_an_slo_that_the_reference_meets() -> None:
    slos = ("p99_ttft_ms<1250",)  # predicted: 1,181 ms, greedy with suffix drafts 1,322
    found = lines_of(StudySettings(slo=slos))
    assert [line for line in found if "suffix speculation" in line] == []
    assert any(line.startswith("greedy decoding") for line in found)


def test_several_workloads_are_not_predicted(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        file = tmp_path / f"{name}.yaml"
        file.write_text("arrivals: {process: poisson, rate: 2}\nrequests: 4\nclasses: {a: {input: 8, output: 8}}\n")
        files.append(str(file))
    assert lines_of(StudySettings(workload=tuple(files))) == []
