"""The simulator's accuracy: recorded studies as rows, errors by regime, and published runs."""

import json
from dataclasses import replace

import pytest

from benchmarks.simulator.bands import error_bands_of
from benchmarks.simulator.left_out import agreement
from benchmarks.simulator.public_pairs import Pair, shares, sign
from benchmarks.simulator.public_pairs import compare as compare_pairs
from benchmarks.simulator.rows import h200, predict
from benchmarks.simulator.several_gpus import Compared, compare
from benchmarks.simulator.studies import flags_of, recorded_studies, study_rows

STUDIES = {study.name: study for study in recorded_studies()}


def test_a_configuration_becomes_its_flags() -> None:
    config = {"max_num_seqs": "9", "prefix_caching": "False", "cudagraph_mode": "PIECEWISE", "quantization": "fp8"}
    assert flags_of(config, 50) == (
        *("--max-num-seqs", "9", "--quantization", "fp8", "--no-enable-prefix-caching"),
        *("--compilation-config", '{"cudagraph_mode": "PIECEWISE"}'),
    )
    assert flags_of({"cudagraph_mode": "eager", "speculative": "off"}, 50) == ("--enforce-eager",)


def test_exact_capture_sizes_are_those_of_the_batches_with_drafts() -> None:
    config = {"capture_sizes": "exact", "max_num_seqs": "4", "speculative": "ngram", "ngram_tokens": "1"}
    assert flags_of(config, 50)[-5:] == ("--cudagraph-capture-sizes", "1", "2", "4", "8")


def test_the_rows_are_the_trials_that_worked() -> None:
    rows = study_rows(STUDIES["h200-7b"])
    assert len(rows) == 23  # the defaults and 23 trials, one of which crashed
    assert rows[0].args == ("--kv-cache-memory-bytes", "8G")
    assert rows[0].repeats == 3
    assert rows[0].metrics["p99_tpot_ms"] == pytest.approx(11.954)


def test_the_agreement_ranks_and_counts_a_predicted_failure_as_the_worst() -> None:
    row = study_rows(STUDIES["h200-7b"])[0]
    rows = [replace(row, metrics={"p99_ttft_ms": value}) for value in (100.0, 200.0, 400.0)]
    exact = agreement(rows, [{"p99_ttft_ms": 110.0}, {"p99_ttft_ms": 200.0}, {}], "p99_ttft_ms")
    assert exact.spearman == pytest.approx(1.0)
    assert exact.median_error == pytest.approx(0.1)  # of 0.1, 0 and 1


@pytest.mark.parametrize(
    ("study", "trial"),
    [
        ("h200-7b", "h200-7b-6"),  # graphs by piece, and a cache with scales for each token and head
        ("h200-7b-12", "h200-7b-12-1"),  # FP8 by blocks without DeepGEMM
        ("h200-7b-12", "h200-7b-12-6"),  # batches above the largest captured size
        ("h200-7b-12", "h200-7b-12-9"),  # graphs by piece
        ("h200", "h200-4"),  # graphs by piece with Triton's attention
    ],
)
def test_what_searches_found_bad_is_predicted_bad(study: str, trial: str) -> None:
    row = next(row for row in study_rows(STUDIES[study]) if row.id == trial)
    assert predict(row)["p99_tpot_ms"] == pytest.approx(row.metrics["p99_tpot_ms"], rel=0.35)


def test_a_tables_row_is_beside_the_tables_host() -> None:
    row = h200()[0]
    assert (row.card.key, row.card.host_speed, row.card.launch_us) == ("h200", 1.0, 4.5)


NGRAM = ("--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 4}))


def test_each_regime_has_its_own_band_and_few_rows_have_none() -> None:
    rows = h200()  # 21 configurations with 16-bit weights and 12 with FP8
    predicted = [{name: 1.1 * value for name, value in row.metrics.items()} for row in rows]
    found = error_bands_of(rows, predicted)
    regimes = [(regime, band["rows"], band["output_throughput"]) for regime, band in found.items() if band]
    assert regimes == [(("h200", "dense", "16-bit"), 21, 0.1), (("h200", "dense", "fp8"), 12, 0.1)]
    few = [row for row in rows if "fp8" in row.args][:9]
    assert set(error_bands_of(few, predicted[:9]).values()) == {None}
    drafting = [replace(row, args=NGRAM) for row in rows[:12]]
    assert error_bands_of(drafting, predicted[:12]) == {}


def test_a_row_that_is_predicted_to_fail_is_wholly_wrong() -> None:
    rows = [row for row in h200() if "fp8" not in row.args][:10]
    (band,) = error_bands_of(rows, [{}] * 10).values()
    assert band is not None
    assert band["p99_ttft_ms"] == 1.0


CARD_BOUND = frozenset({"tt143", "pr2192"})
"""Sources of large models on few GPUs, whose steps the card bounds with any engine."""


@pytest.fixture(scope="module")
def compared() -> list[Compared]:
    return compare(CARD_BOUND | {"i16300"})


def test_large_models_on_two_and_four_gpus_are_within_20_percent_of_the_published(compared: list[Compared]) -> None:
    errors = [each.error for each in compared if each.run["source"] in CARD_BOUND]
    assert len(errors) == 6
    assert max(map(abs, errors)) < 0.2


def test_factors_are_those_from_the_fewest_gpus_of_a_group(compared: list[Compared]) -> None:
    single = [each for each in compared if each.run["source"] == "i16300" and each.run["batch"] == 1]
    assert [each.run["gpus"] for each in single] == [2, 4, 8]
    assert single[0].published_factor is None
    assert [each.published_factor for each in single[1:]] == pytest.approx([3.91 / 5.50, 3.15 / 5.50])
    assert single[1].predicted_factor == pytest.approx(single[1].predicted / single[0].predicted)


def test_communication_grows_with_the_gpus(compared: list[Compared]) -> None:
    shares = [each.communication for each in compared if each.run["source"] == "i16300" and each.run["batch"] == 16]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 0.5


def test_an_effect_within_two_percent_is_flat() -> None:
    assert [sign(ratio) for ratio in (0.0, 0.979, 0.981, 1.019, 1.021)] == [-1, -1, 0, 0, 1]


def test_a_pair_that_is_not_predicted_counts_as_neither_right_nor_wrong() -> None:
    pairs = [
        Pair("a", "right", False, 1.3, 1.1),
        Pair("a", "flat for slower", False, 0.9, 1.0),
        Pair("b", "does not start", False, 1.2, 0.0),
        Pair("b", "unknown", True, 1.2, None, lacking="a reason"),
    ]
    assert [pair.is_right for pair in pairs] == [True, False, False, None]
    by_kind = {"a": (1, 2, 2), "b": (0, 1, 2)}
    assert shares(pairs) == {**by_kind, "listed": (1, 3, 3), "beside": (0, 0, 1), "all": (1, 3, 4)}


def test_a_published_time_counts_by_its_inverse_and_a_group_without_facts_is_not_predicted() -> None:
    pairs = {pair.id: pair for pair in compare_pairs(kind="tuned kernel files")}
    tuned = pairs["vllm2979/tuned/q1"]  # 11.6 ms for each token in place of 23.3 ms
    assert tuned.published == pytest.approx(23.3 / 11.6)
    assert (tuned.predicted, tuned.is_right) == (None, None)
    assert tuned.lacking is not None


def test_awq_helps_a_small_card_and_block_fp8_hurts_an_a100() -> None:
    predicted = {pair.id: sign(pair.predicted or 0.0) for pair in compare_pairs(0.5, "weights by card")}
    assert predicted["gs-quant/RTX 4090 24GB/AWQ-Marlin"] == 1
    assert predicted["gs-quant/A100 80GB/GPTQ-Int8"] == -1
    assert predicted["gs-14b/A100/FP8"] == -1
