"""`tuner trials`, `tuner show` and `tuner best` over a study that was written by hand."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from records.trials import Failure, FailureKind, Phase, Provenance, StudyRecord, TrialRecord
from storage.store import open_store
from tests.cli.command import run_here
from tests.unit.cli.studies import NOW, out_of_memory, trial

CONFIG = {"max_num_seqs": 50, "block_size": 64}
TRIALS = (
    trial(0, 1000.0),
    trial(1, 1500.0, score=1.4, tpot=12.0, config=CONFIG, p50_ttft_ms=5.0, median_ttft_ms=5.0, mean_ttft_ms=6.0),
    trial(1, 1490.0, score=1.3, round_=1, config=CONFIG),
    trial(3, failure=out_of_memory(), config=CONFIG),
    trial(4, 900.0, score=0.9, tpot=8.0, config={"max_num_seqs": 256}),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of four trials; number 2 was dropped before a launch."""
    folder = tmp_path_factory.mktemp("trials")
    write_study(folder, TRIALS)
    return folder


def write_study(folder: Path, trials: tuple[TrialRecord, ...]) -> None:
    (folder / "tuner_study").mkdir()
    premise = {"objectives": ["output_throughput:40", "p99_tpot_ms:20"], "slos": ["p99_tpot_ms<50"]}
    facts = {"engine_defaults": {"max_num_seqs": 256, "block_size": 16}}
    with closing(open_store(f"sqlite:///{folder / 'tuner_study' / 'tuner.db'}")) as store:
        store.create_study(StudyRecord("small", NOW, Provenance.MEASURED, premise, facts))
        for record in trials:
            store.add_trial(replace(record, outcome=None, verdict=None))
            store.begin_attempt("small", record.number, record.round)
            assert record.outcome is not None
            store.finish_trial("small", record.number, record.round, record.outcome, record.verdict)


def first_words(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line.startswith("#")]


def test_the_table_shows_what_differs_from_the_defaults(folder: Path) -> None:
    assert run_here(folder, "trials").out.splitlines() == [
        "small (measured)",
        "                           output_throughput",
        "trial       state   score              tok/s  p99_tpot_ms  differs from the defaults",
        "────────────────────────────────────────────────────────────────────────────────────────────────────",
        "#0          ok      1.000              1,000           10  the defaults",
        "#1          ok      1.400              1,500           12  max_num_seqs=50 block_size=64",
        "#1 round 1  ok      1.300              1,490           10  max_num_seqs=50 block_size=64",
        "#3          failed      –                  –            –  out_of_memory_startup: CUDA out of memory",
        "#4          ok      0.900                900            8  the defaults",
        "numbers without a trial are suggestions that were dropped before a launch: 2",
    ]


@pytest.mark.parametrize(
    ("argv", "numbers"),
    [
        (["--sort", "score"], ["#1", "#0", "#4", "#3"]),
        (["--sort", "output_throughput"], ["#1", "#0", "#4", "#3"]),
        (["--sort", "p99_tpot_ms"], ["#4", "#0", "#1", "#3"]),
        (["--sort", "mean_ttft_ms", "--top", "1"], ["#1"]),
        (["--sort", "number", "--top", "2"], ["#0", "#1"]),
        (["--top", "3"], ["#0", "#1", "#1"]),
        (["--failed"], ["#3"]),
    ],
)
def test_sorted_filtered_and_cut(folder: Path, argv: list[str], numbers: list[str]) -> None:
    assert first_words(run_here(folder, "trials", *argv).out) == numbers


def test_programs_get_the_same_selection(folder: Path) -> None:
    rows = json.loads(run_here(folder, "trials", "--sort", "p99_tpot_ms", "--top", "2", "--json").out)
    assert [row["number"] for row in rows] == [4, 0]


def test_a_mistyped_column_gets_a_suggestion(folder: Path) -> None:
    output = run_here(folder, "trials", "--sort", "output_througput")
    assert (output.code, output.out) == (2, "")
    assert (
        output.err == "tuner: --sort 'output_througput': no trial has such a column; did you mean output_throughput?\n"
    )


def test_a_number_without_a_trial_is_explained(folder: Path) -> None:
    output = run_here(folder, "show", "2")
    assert (output.code, output.out, output.err.count("\n")) == (2, "", 1)
    assert "has no trial 2: the sampler suggested it, and it never ran: it was dropped before a launch" in output.err
    assert "has no trial 9; see `tuner trials`" in run_here(folder, "show", "9").err


def test_a_page_shows_each_statistic_once(folder: Path) -> None:
    lines = run_here(folder, "show", "1").out.splitlines()
    assert lines[0] == "#1  ok  search"
    assert "configuration  max_num_seqs=50 block_size=64" in lines
    assert "SLOs           p99_tpot_ms<50 met" in lines
    assert "latency, ms  mean  median  p99" in lines
    assert "TTFT            6       5    –" in lines
    assert [line for line in lines if "p50" in line] == []


def test_without_a_conclusion_the_leaders_are_shown(folder: Path) -> None:
    output = run_here(folder, "best")
    assert output.out.startswith("study small has no conclusion yet; the best trials of its search so far:\n")
    assert first_words(output.out) == ["#1", "#0", "#4"]


def test_the_whole_message_of_a_failure_is_shown(tmp_path: Path) -> None:
    """The end of the engine's message is what to do."""
    message = (
        "No available memory for the cache blocks. " + "More words. " * 20 + "Try increasing `gpu_memory_utilization`."
    )
    failed = trial(0, failure=Failure(FailureKind.KV_CACHE_TOO_SMALL, Phase.READY, message))
    write_study(tmp_path, (failed,))
    for argv in (("trials", "--failed"), ("trials",), ("best",)):
        printed = run_here(tmp_path, *argv)
        words = " ".join(printed.out.split())
        assert "kv_cache_too_small: No available memory" in words
        assert "Try increasing `gpu_memory_utilization`." in words
        assert printed.code == (1 if argv == ("best",) else 0)


def test_the_best_of_a_study_in_which_nothing_meets_the_slos(tmp_path: Path) -> None:
    write_study(tmp_path, (trial(0, 1000.0, tpot=80.0),))
    printed = run_here(tmp_path, "best")
    assert printed.code == 3
    assert "no trial of study small meets its SLOs yet" in printed.out
    assert "misses p99_tpot_ms<50" in printed.out
