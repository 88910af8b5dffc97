"""The recorded studies as rows, and the agreement of predictions with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.simulator.left_out import agreement
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
