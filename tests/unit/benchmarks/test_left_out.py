"""The recorded studies as rows, and the agreement of predictions with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.simulator.left_out import agreement
from benchmarks.simulator.rows import h200, predict
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


def test_a_row_of_a_round_has_the_rounds_traffic() -> None:
    rows = {row.id: row for row in study_rows(STUDIES["h200-7b-8"], rounds=True)}
    assert rows["h200-7b-8-6"].workload.seed == STUDIES["h200-7b-8"].workload.seed
    assert rows["h200-7b-8-6.2"].workload.seed == STUDIES["h200-7b-8"].workload.seed + 2000


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
