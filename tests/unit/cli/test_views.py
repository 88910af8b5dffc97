"""The live view at three widths, and the plain lines."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from records.trials import Failure, FailureKind, Phase, Provenance
from tests.unit.cli.studies import Clock, out_of_memory, study_start, trial, trial_spec
from tuner.cli.output.progress.state import Progress
from tuner.cli.output.progress.views import LiveView, PlainView, picture
from tuner.executors.base import WorkerState
from tuner.study.protocols import Stage, StagePlan, SyncStatus

CONFIG = {"max_num_seqs": 50, "block_size": 64}
BUSY = WorkerState(0, "Tesla T4", "5", Phase.BENCHMARK, 12.0)
IDLE = WorkerState(1, "Tesla T4", None, None, 0.0)


def drawn(progress: Progress, width: int, height: int = 40) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        console.print(picture(progress, width, height))
    return [line.rstrip() for line in captured.get().splitlines()]


def halfway(folder: Path, provenance: Provenance = Provenance.MEASURED) -> Progress:
    """Return a study of ten trials of which five are done."""
    clock = Clock()
    progress = Progress(study_start(folder, workers=2, provenance=provenance), clock)
    for number, record in enumerate(
        [
            trial(0),
            trial(1, 1200.0, score=1.2, config=CONFIG),
            trial(2, 500.0, score=0.4, tpot=80.0, config=CONFIG),
            trial(3, failure=out_of_memory("CUDA out of memory. Tried to allocate 2.00 GiB"), config=CONFIG),
            trial(4, 900.0, score=0.9, config={"max_num_seqs": 32, "block_size": 32}),
        ]
    ):
        progress.started(trial_spec(number))
        clock.now += 100.0
        progress.finished(record)
    progress.workers = (BUSY, IDLE)
    progress.mlflow = SyncStatus(3, 5, None)
    return progress


def test_at_80_columns(tmp_path: Path) -> None:
    assert drawn(halfway(tmp_path), 80) == [
        "small  org/model on Tesla T4",
        "search  ━━━━━━━━━━━━━━━━━━╸                    5 of 10 trials, about 22 min left",
        "time     8 min 20 s",
        "",
        "best     #1, score 1.2 (the defaults have 1)",
        "         output_throughput 1,200 tok/s ×1.20, p99_tpot_ms 10 ×1.00",
        "         max_num_seqs=50 block_size=64",
        "",
        "                          output_throughput",
        "trial  state       score              tok/s  p99_tpot_ms",
        "#0     ok          1.000              1,000           10",
        "#1     ok          1.200              1,200           10",
        "#2     infeasible  0.400                500           80",
        "#3     failed          –                  –            –",
        "#4     ok          0.900                900           10",
        "",
        "w0       Tesla T4  #5  benchmark  12 s",
        "w1       Tesla T4  waits for a trial",
        "",
        "failed   out_of_memory_startup 1",
        "MLflow   3 of 5 trials logged",
    ]


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("provenance", Provenance)
def test_no_line_is_wrapped_or_too_wide(tmp_path: Path, width: int, provenance: Provenance) -> None:
    progress = halfway(tmp_path, provenance)
    progress.mlflow = SyncStatus(3, 5, "the server at http://mlflow.example.org:5000 does not answer: " + "x" * 200)
    lines = drawn(progress, width)
    assert max(map(len, lines)) <= width
    # title, bar, time, blank, best (3), blank, headings (2), trials (5), blank, failed, MLflow; workers if measured
    assert len(lines) == 18 + (3 if provenance is Provenance.MEASURED else 0)


def test_a_wide_terminal_shows_what_each_trial_changes(tmp_path: Path) -> None:
    lines = drawn(halfway(tmp_path), 120)
    assert "#1     ok          1.200              1,200           10  max_num_seqs=50 block_size=64" in lines
    assert "#2     infeasible  0.400                500           80  misses p99_tpot_ms<50" in lines
    assert [line for line in lines if line.startswith("#3     failed") and "out_of_memory_startup: CUDA out" in line]
    assert "#4     ok          0.900                900           10  block_size=32" in lines


def test_a_simulation_shows_both_times_and_no_worker(tmp_path: Path) -> None:
    lines = drawn(halfway(tmp_path, Provenance.SIMULATED), 100)
    assert lines[0].endswith("SIMULATED")
    assert "time     8 min 20 s real; the trials took 8 min 20 s of simulated time" in lines
    assert [line for line in lines if line.startswith("w0")] == []


def test_a_measured_study_shows_its_workers(tmp_path: Path) -> None:
    lines = drawn(halfway(tmp_path), 100)
    assert "w0       Tesla T4  #5  benchmark  12 s" in lines
    assert "w1       Tesla T4  waits for a trial" in lines


def test_a_low_terminal_shows_fewer_trials(tmp_path: Path) -> None:
    lines = drawn(halfway(tmp_path), 80, height=20)
    assert len(lines) <= 20
    assert [line.split()[0] for line in lines if line.startswith("#")] == ["#1", "#2", "#3", "#4"]


def test_the_confirmation_shows_its_round(tmp_path: Path) -> None:
    progress = halfway(tmp_path)
    progress.stage(StagePlan(Stage.CONFIRMATION, 4, ("#0", "#1"), (1, 2)))
    progress.started(trial_spec(1, round_=2))
    assert drawn(progress, 80)[1].startswith("confirmation, round 2 of 2 ")
    assert drawn(progress, 80)[1].endswith(" 0 of 4 measured, about 7 min left")


def test_the_wait_for_mlflow_replaces_the_trials(tmp_path: Path) -> None:
    progress = halfway(tmp_path)
    progress.mlflow = SyncStatus(43, 72, None, waiting=True)
    title, bar, hint = drawn(progress, 80)
    assert title.startswith("small")
    assert bar.startswith("MLflow  ━")
    assert bar.endswith("logging to MLflow: 43 of 72 trials")
    assert hint == "Ctrl-C skips the wait; `tuner sync` logs the rest later"


def test_before_the_first_trial(tmp_path: Path) -> None:
    lines = drawn(Progress(study_start(tmp_path), Clock()), 80)
    assert lines[1].endswith("0 of 10 trials")
    assert "no trial has finished yet" in lines


def test_the_live_view_leaves_notes_and_takes_itself_away(tmp_path: Path) -> None:
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    view = LiveView(console)
    view.opened(study_start(tmp_path))
    view.stage(StagePlan(Stage.SEARCH, 10))
    view.started(trial_spec(3), 0)
    view.retried(trial_spec(3), Failure(FailureKind.WORKER_LOST, Phase.READY, "[gone]"))
    view.finished(trial(0))
    view.tick((BUSY, IDLE))
    view.synced(SyncStatus(0, 1, None))
    view.note("a [note]")
    view.close()
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "#3 runs again: attempt 1 failed, worker_lost: [gone]\n" in written
    assert "a [note]\n" in written
    assert view.progress.done == 1


def plain(folder: Path, **start: object) -> tuple[PlainView, list[str]]:
    lines: list[str] = []
    view = PlainView(lines.append)
    view.opened(study_start(folder, **start))  # type: ignore[arg-type]
    lines.clear()
    return view, lines


def test_a_pipe_gets_one_line_a_trial(tmp_path: Path) -> None:
    view, lines = plain(tmp_path)
    view.stage(StagePlan(Stage.SEARCH, 10))
    for record in (
        trial(0),
        trial(1, 1200.0, score=1.2, config=CONFIG),
        trial(2, 500.0, score=0.4, tpot=80.0, config=CONFIG),
        trial(3, failure=out_of_memory("CUDA out of\nmemory"), config=CONFIG),
        trial(4, score=1.1, config=CONFIG, label="published"),
    ):
        view.started(trial_spec(record.number), 0)
        view.finished(record)
    view.stage(StagePlan(Stage.CONFIRMATION, 4, ("#0", "#1"), (1, 2)))
    view.started(trial_spec(1, round_=1), 0)
    view.started(trial_spec(0, round_=2), 1)  # the line of a measurement names its own round
    view.finished(trial(1, 1190.0, score=1.19, round_=1, config=CONFIG))
    assert lines == [
        "[1/10] #0 ok, score 1.000: output_throughput 1,000 tok/s, p99_tpot_ms 10; the defaults",
        "[2/10] #1 ok, score 1.200: output_throughput 1,200 tok/s, p99_tpot_ms 10; max_num_seqs=50 block_size=64",
        "[3/10] #2 infeasible, misses p99_tpot_ms<50, score 0.400: output_throughput 500 tok/s, p99_tpot_ms 80; "
        "max_num_seqs=50 block_size=64",
        "[4/10] #3 failed, out_of_memory_startup: CUDA out of memory; max_num_seqs=50 block_size=64",
        "[5/10] #4 ok, score 1.100: output_throughput 1,000 tok/s, p99_tpot_ms 10; "
        "published = max_num_seqs=50 block_size=64",
        "confirmation: #0, #1 in 2 rounds, 4 measurements",
        "[round 1 of 2] #1 ok, score 1.190: output_throughput 1,190 tok/s, p99_tpot_ms 10; "
        "max_num_seqs=50 block_size=64",
    ]


def test_a_long_message_is_cut_and_the_number_of_changes_stays(tmp_path: Path) -> None:
    view, lines = plain(tmp_path)
    view.finished(trial(1, failure=out_of_memory("word " * 60), config=CONFIG))
    assert len(lines[0]) <= 140
    assert lines[0].endswith("word…; 2 changes")


def test_retries_and_ablations_have_a_line(tmp_path: Path) -> None:
    view, lines = plain(tmp_path)
    view.retried(trial_spec(3, attempt=2), Failure(FailureKind.SERVER_KILLED, Phase.BENCHMARK, "signal 9"))
    view.stage(StagePlan(Stage.ABLATION, 1, ("#1 without block_size",)))
    assert lines == ["#3 runs again: attempt 2 failed, server_killed: signal 9", "ablation: #1 without block_size"]


def test_the_wait_for_mlflow_is_written_every_ten_trials(tmp_path: Path) -> None:
    view, lines = plain(tmp_path)
    for logged in (0, 0, 4, 11, 12, 20, 21):
        view.synced(SyncStatus(logged, 21, None, waiting=True))
    view.synced(SyncStatus(5, 21, None))
    assert lines == [
        "logging to MLflow: 0 of 21 trials (Ctrl-C skips the wait, `tuner sync` logs the rest)",
        "logging to MLflow: 11 of 21 trials",
    ]


def test_a_long_wait_for_the_summary_in_mlflow_is_written_once(tmp_path: Path) -> None:
    lines: list[str] = []
    clock = iter((10.0, 11.0, 12.5, 13.0, 20.0))
    view = PlainView(lines.append, lambda: next(clock))
    view.opened(study_start(tmp_path))
    lines.clear()
    for _ in range(4):
        view.synced(SyncStatus(21, 21, None, waiting=True))
    hint = "(Ctrl-C skips the wait, `tuner sync` logs the rest)"
    assert lines == [f"logging to MLflow: 21 of 21 trials, now the study's summary {hint}"]


def test_the_opening_names_what_is_simulated_and_what_the_search_sends(tmp_path: Path) -> None:
    lines: list[str] = []
    start = study_start(tmp_path, provenance=Provenance.SIMULATED, search_prompts=50, records=(trial(0),))
    PlainView(lines.append).opened(start)
    assert lines == [
        "SIMULATED: predicted, not measured: vLLM 0.25.1 on one Tesla T4; use --engine vllm without --gpu to measure",
        "study small: 10 trials (1 finished before), 1 worker, vllm 0.25.1, 2 parameters",
        "each trial of the search sends 50 requests; the rounds of the confirmation send all",
        "SLOs: p99_tpot_ms<50",
        "score weights: output_throughput 40, p99_tpot_ms 20, success_rate 10",
    ]
