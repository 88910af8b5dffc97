"""What the commands print: values, next steps, openings, trials, traffic, and views."""

import io
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from rich.console import Console, Group
from typer.core import TyperCommand

from records.trials import (
    Failure,
    FailureKind,
    Phase,
    Provenance,
    StudyRecord,
    TrialKind,
    TrialOutcome,
    TrialRecord,
    Verdict,
)
from search_spaces import Context, hardware_named, load_space
from storage.store import Store, open_store
from tests import store_samples as samples
from tests.cli.command import run_here
from tests.unit.cli.studies import NOW, Clock, out_of_memory, study_start, trial, trial_spec
from tuner.cli.arguments import command
from tuner.cli.options import option_of, pairs, server_arguments
from tuner.cli.output.pages import optimize
from tuner.cli.output.progress.lines import goal_lines, unused_models
from tuner.cli.output.progress.state import Progress
from tuner.cli.output.progress.views import LiveView, PlainView, picture
from tuner.errors import SettingError, UserError
from tuner.executors.base import WorkerState
from tuner.loadgen.result import write_records
from tuner.settings.declared import read_duration
from tuner.study.protocols import MlflowLacks, Stage, StagePlan, SyncStatus
from tuner.study.specification.resolve_workload import make_goals
from tuner.workloads.results import RequestRecord, RequestStatus

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
        "trial  state       score              tok/s  differs from the defaults",
        "#0     ok          1.000              1,000  the defaults",
        "#1     ok          1.200              1,200  max_num_seqs=50 block_size=64",
        "#2     infeasible  0.400                500  misses p99_tpot_ms<50",
        "#3     failed          –                  –  out_of_memory_startup: CUDA out of…",
        "#4     ok          0.900                900  block_size=32",
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
    assert hint == "Ctrl-C skips the wait, `tuner study sync small` logs the rest"


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
        "logging to MLflow: 0 of 21 trials (Ctrl-C skips the wait, `tuner study sync small` logs the rest)",
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
    hint = "(Ctrl-C skips the wait, `tuner study sync small` logs the rest)"
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("45s", 45), ("2h", 7200), ("1h30m", 5400), ("10min", 600), ("0.5h", 1800), ("1h30", 3630)],
)
def test_durations(text: str, expected: float) -> None:
    assert read_duration("timeout", text) == expected


@pytest.mark.parametrize("text", ["", "soon", "-5", "2x", "h", "0", "1 hour"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(SettingError, match=r"^timeout="):
        read_duration("timeout", text)


def test_pairs() -> None:
    assert pairs("env", ["A=1", "B_C=x=y", "D="]) == {"A": "1", "B_C": "x=y", "D": ""}
    assert pairs("env", None) == {}


@pytest.mark.parametrize("texts", [["A"], ["=1"], ["A B=1"], ["A=1", "A=2"]])
def test_bad_pairs(texts: list[str]) -> None:
    with pytest.raises(SettingError, match=r"^env="):
        pairs("env", texts)


def test_an_error_names_a_setting_as_python_or_as_the_command_line_does() -> None:
    error = SettingError("max_concurrency", 0, "at least 1 is needed", "raise it, or leave out {learn_from}")
    assert str(error) == "max_concurrency=0: at least 1 is needed; raise it, or leave out learn_from"
    line = "--users 0: at least 1 is needed; raise it, or leave out --learn-from"
    assert error.message(option_of, " ") == line


def test_the_error_of_a_setting_that_was_not_given_starts_with_the_rule() -> None:
    assert str(SettingError("storage", None, "there is no database", "give {storage}")) == (
        "there is no database; give storage"
    )


@pytest.mark.parametrize("words", [(), ("--seed", "1"), ("llama.cpp=", "--threads", "8"), ("vllm=--seed", "1")])
def test_flags_of_the_server_may_begin_with_an_engines_name(words: tuple[str, ...]) -> None:
    assert server_arguments(context(*words)) == words


@pytest.mark.parametrize("word", ["stray", "vllm", "none=", "=--seed"])
def test_another_word_is_no_flag(word: str) -> None:
    with pytest.raises(UserError, match=f"'{word}' is not an option of `optimize`"):
        server_arguments(context(word))


def context(*words: str) -> typer.Context:
    """Return the context of `tuner optimize` with words that no option takes."""
    made = typer.Context(TyperCommand("optimize"), info_name="optimize")
    made.args = list(words)
    return made


def steps(check: str | None) -> list[str]:
    """Return the lines for a study with a winner and a script."""
    ended: Any = SimpleNamespace(
        spec=SimpleNamespace(name="s"),
        engine=SimpleNamespace(provenance=Provenance.MEASURED),
        script=Path("best_serve.sh"),
        run=SimpleNamespace(conclusion=None),
        check=check,
        records=(trial(3, 1000.0),),
        report=Path("reports/a study.html").absolute(),
        tracking_uri="sqlite:///mlflow.db",
        mlflow_lacks=MlflowLacks.NOTHING,
    )
    console = Console(width=100, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        console.print(Group(*optimize._next_steps(ended, 3)))
    return [" ".join(line.split()) for line in captured.get().splitlines()]


def test_a_command_to_paste_says_where_the_studies_are(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["tuner", "optimize", "--storage", "a b.db", "--trials", "3", "--insecure"]
    monkeypatch.setattr("sys.argv", words)
    assert command("study", "trial", "s#3") == "tuner study trial 's#3' --storage 'a b.db' --insecure"
    monkeypatch.setattr("sys.argv", ["tuner", "study", "show", "--server=http://h:1"])
    assert command("study", "list") == "tuner study list --server=http://h:1"


@pytest.mark.parametrize("check", [None, "tuner quality --study s"])
def test_a_winner_whose_answers_were_not_checked_has_a_step_that_checks_them(check: str | None) -> None:
    report = "read the report 'reports/a study.html'"
    rest = [
        report,
        "list the best trials tuner study trials s --sort score --top 10",
        "show one in full tuner study trial 's#3'",
    ]
    checks = [] if check is None else [f"check the answers {check}"]
    first = ["", "next", "start the server ./best_serve.sh", "verify its figures ./best_serve.sh --verify"]
    assert steps(check) == [*first, *checks, *rest, "compare in MLflow tuner study ui s"]


@pytest.mark.parametrize(
    ("only", "keep_answers", "lines"),
    [
        (None, False, []),
        (
            ("max_num_seqs",),
            False,
            [
                "--checkpoint awq is not used: the study does not search the parameter quantization",
                "--draft-model is not used: the study does not search the parameter speculative",
            ],
        ),
        (
            None,
            True,
            ["--checkpoint awq is not used: it may change the model's answers, which the study excludes"],
        ),
    ],
)
def test_a_model_that_is_not_used(only: tuple[str, ...] | None, keep_answers: bool, lines: list[str]) -> None:
    models: dict[str, Any] = {"checkpoints": {"awq": "a/awq"}, "draft_model": "a/draft", "draft_kind": "model"}
    context = Context(hardware_named("h100"), "0.25.1", **models)
    space = load_space("vllm").resolve(context, only=only, keep_answers=keep_answers)
    assert list(unused_models(space)) == lines


def test_goals_are_shown_with_their_source_unless_the_user_gave_them() -> None:
    goals = make_goals(["output_throughput", "p99_ttft_ms"], ["p99_ttft_ms<2000"])
    weights = "output_throughput 40, p99_ttft_ms 15, success_rate 10"
    assert goal_lines(goals, {"slos": "preset chat", "objectives": ""}) == [
        "SLOs (preset chat; --slo replaces them): p99_ttft_ms<2000",
        f"score weights: {weights}",
    ]
    assert goal_lines(make_goals(["output_throughput"], []), {}) == [
        "score weights: output_throughput 40, success_rate 10"
    ]


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
    assert run_here(folder, "study", "trials").out.splitlines() == [
        "small (measured)",
        "                           output_throughput",
        "trial       state   score              tok/s  p99_tpot_ms  differs from the defaults",
        "────────────────────────────────────────────────────────────────────────────────────────────────",
        "#0          ok      1.000              1,000           10  the defaults",
        "#1          ok      1.400              1,500           12  max_num_seqs=50 block_size=64",
        "#1 round 1  ok      1.300              1,490           10  max_num_seqs=50 block_size=64",
        "#3          failed      –                  –            –  out_of_memory_startup: CUDA out of",
        "                                                           memory",
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
    assert first_words(run_here(folder, "study", "trials", *argv).out) == numbers


def test_programs_get_the_same_selection(folder: Path) -> None:
    rows = json.loads(run_here(folder, "study", "trials", "--sort", "p99_tpot_ms", "--top", "2", "--json").out)
    assert [row["number"] for row in rows] == [4, 0]


def test_a_mistyped_column_gets_a_suggestion(folder: Path) -> None:
    output = run_here(folder, "study", "trials", "--sort", "output_througput")
    assert (output.code, output.out) == (2, "")
    assert (
        output.err == "tuner: --sort 'output_througput': no trial has such a column; did you mean output_throughput?\n"
    )


def test_a_number_without_a_trial_is_explained(folder: Path) -> None:
    output = run_here(folder, "study", "trial", "2")
    assert (output.code, output.out, output.err.count("\n")) == (2, "", 1)
    assert "has no trial 2: the sampler suggested it, and it never ran: it was dropped before a launch" in output.err
    assert "has no trial 9; see `tuner study trials small`" in run_here(folder, "study", "trial", "9").err


def test_a_page_shows_each_statistic_once(folder: Path) -> None:
    lines = run_here(folder, "study", "trial", "1").out.splitlines()
    assert lines[0] == "#1  ok  search"
    assert "configuration  max_num_seqs=50 block_size=64" in lines
    assert "SLOs           p99_tpot_ms<50 met" in lines
    assert "latency, ms  mean  median  p99" in lines
    assert "TTFT            6       5    –" in lines
    assert [line for line in lines if "p50" in line] == []


def test_without_a_conclusion_the_leaders_are_shown(folder: Path) -> None:
    output = run_here(folder, "study", "show")
    assert output.out.startswith("study small has no conclusion yet; the best trials of its search so far:\n")
    assert first_words(output.out) == ["#1", "#0", "#4"]


def test_the_whole_message_of_a_failure_is_shown(tmp_path: Path) -> None:
    """The end of the engine's message is what to do."""
    message = (
        "No available memory for the cache blocks. " + "More words. " * 20 + "Try increasing `gpu_memory_utilization`."
    )
    failed = trial(0, failure=Failure(FailureKind.KV_CACHE_TOO_SMALL, Phase.READY, message))
    write_study(tmp_path, (failed,))
    for argv in (("study", "trials", "--failed"), ("study", "trials"), ("study", "show")):
        printed = run_here(tmp_path, *argv)
        words = " ".join(printed.out.split())
        assert "kv_cache_too_small: No available memory" in words
        assert "Try increasing `gpu_memory_utilization`." in words
        assert printed.code == (1 if argv == ("study", "show") else 0)


def test_the_best_of_a_study_in_which_nothing_meets_the_slos(tmp_path: Path) -> None:
    write_study(tmp_path, (trial(0, 1000.0, tpot=80.0),))
    printed = run_here(tmp_path, "study", "show")
    assert printed.code == 3
    assert "no trial of study small meets its SLOs yet" in printed.out
    assert "misses p99_tpot_ms<50" in printed.out


CLASSES = {"chat": {"weight": 1.0}, "docs": {"weight": 1.0}}
SLO = {"chat": {"ttft_ms": 5000.0}}
RATES = """\
rate,held,missed,offered,completed,success_rate,goodput_share,goodput,p50_ttft_ms,p95_ttft_ms,p99_ttft_ms,p95_tpot_ms
64,False,p95_ttft_ms<1000,100,0,0,0,,,,,
16,True,,100,100,1,0.9999,16,41.5,103.5,114.25,22.5
"""


def made(store: Store, name: str, workload: Mapping[str, Any], objective: str = "goodput:1") -> StudyRecord:
    record = replace(samples.study(name), premise={"workload": dict(workload), "objectives": [objective]})
    store.create_study(record)
    return record


def finish(
    store: Store, study: str, number: int, outcome: TrialOutcome, config: dict[str, Any], round: int = 0
) -> None:
    kind = TrialKind.CONFIRM if round else TrialKind.SEARCH if number else TrialKind.BASELINE
    record = replace(samples.pending(number, round, study, kind), config=config)
    store.add_trial(record)
    store.begin_attempt(study, number, round)
    verdict = None if outcome.failure else Verdict({"goodput": 1.0}, {}, 1.0 + number / 10)
    store.finish_trial(study, number, round, outcome, verdict)


def served(chat: float, docs: float, artifacts: Path | str = "nowhere") -> TrialOutcome:
    shares = {"chat": chat, "docs": docs, "worst": min(chat, docs)}
    metrics = {f"{name}.goodput_share": share for name, share in shares.items()}
    repeat = replace(samples.repeat(0), metrics=metrics | {"goodput_share": (chat + docs) / 2})
    return replace(samples.success(repeat), artifacts=str(artifacts))


@pytest.fixture(scope="module")
def traffic_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose database holds studies of several loads."""
    traffic_folder = tmp_path_factory.mktemp("traffic")
    (traffic_folder / "tuner_study").mkdir()
    store = open_store(f"sqlite:///{traffic_folder / 'tuner_study' / 'tuner.db'}")
    logs = traffic_folder / "t1"
    logs.mkdir()
    write_records(
        logs / "requests-0.jsonl.gz",
        [
            RequestRecord(0, "chat", RequestStatus.COMPLETED, planned_input=50),
            RequestRecord(1, "chat", RequestStatus.TIMED_OUT, planned_input=70),
            RequestRecord(2, "docs", RequestStatus.NOT_SENT),
        ],
    )
    (logs / "capacity.csv").write_text(RATES)
    made(store, "mixed", {"classes": CLASSES, "slo": SLO})
    finish(store, "mixed", 0, served(0.25, 0.5), {})
    finish(store, "mixed", 1, served(1.0, 0.5, logs), {"max_num_seqs": 64})
    finish(store, "mixed", 1, served(0.8, 0.7), {"max_num_seqs": 64}, round=1)
    finish(store, "mixed", 2, replace(samples.failed(), artifacts=str(logs.parent)), {"max_num_seqs": 512})
    store.update_study("mixed", conclusion={"winner": 1})
    made(store, "without-slo", {"classes": CLASSES, "slo": {}})
    made(store, "new", {"classes": CLASSES, "slo": SLO}, "capacity:1")
    made(store, "many", {"classes": CLASSES, "slo": SLO}, "capacity:1")
    for number in range(20):
        crashed = replace(samples.failed(FailureKind.ENGINE_CRASH))
        finish(store, "many", number, crashed if number == 3 else served(0.5, number / 20), {"max_num_seqs": number})
    made(store, "easy", {"classes": CLASSES, "slo": SLO})
    made(store, "even", {"classes": CLASSES, "slo": SLO})
    for number in range(2):
        finish(store, "easy", number, served(1.0, 1.0), {"max_num_seqs": number})
        finish(store, "even", number, served(1.0, 0.5 + number / 4), {"max_num_seqs": number})
    finish(store, "easy", 2, samples.failed(), {})
    made(store, "closed", {"max_concurrency": 50, "num_prompts": 200})
    finish(store, "closed", 0, samples.success(), {})
    store.close()
    return traffic_folder


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.split()]


def test_the_matrix_marks_the_best_of_a_row(traffic_folder: Path) -> None:
    output = run_here(traffic_folder, "study", "tradeoff", "mixed")
    assert (output.code, output.err) == (0, "")
    found = lines(output.out)
    assert output.out.startswith("mixed (measured): share of offered requests within their SLO\n")
    assert found[1:3] == [["failed"], ["class", "#0", "#1", "#2"]]
    assert ["chat", "25%", "80%*", "–"] in found
    assert ["docs", "50%", "70%*", "–"] in found
    assert ["worst", "25%", "70%*", "–"] in found
    assert ["all", "37.5%", "75%*", "–"] in found
    assert "#1 max_num_seqs=64\n" in output.out
    assert "#2 max_num_seqs=512 (out_of_memory_startup)\n" in output.out
    assert "capacity" not in output.out


def test_a_matrix_without_a_difference_is_one_line(traffic_folder: Path) -> None:
    assert run_here(traffic_folder, "study", "tradeoff", "easy").out == (
        "easy (measured): all requests of all 2 measured configurations were within their SLO (1 without a result); "
        "raise the rate, tighten `slo:`, or find the highest rate with `tuner capacity`\n"
    )


def test_a_row_of_equal_shares_has_no_mark(traffic_folder: Path) -> None:
    found = lines(run_here(traffic_folder, "study", "tradeoff", "even").out)
    assert ["chat", "100%", "100%"] in found
    assert ["docs", "50%", "75%*"] in found


def test_the_matrix_for_programs(traffic_folder: Path) -> None:
    output = run_here(traffic_folder, "study", "tradeoff", "mixed", "--csv")
    assert output.out.splitlines() == [
        "class,#0 defaults,#1 max_num_seqs=64,#2 max_num_seqs=512 (out_of_memory_startup),best",
        "chat,0.25,0.8,,#1",
        "docs,0.5,0.7,,#1",
        "worst,0.25,0.7,,#1",
        "all,0.375,0.75,,#1",
    ]
    document = json.loads(run_here(traffic_folder, "study", "tradeoff", "mixed", "--json").out)
    assert (document["study"], document["provenance"]) == ("mixed", "measured")
    assert document["best"] == {"chat": [1], "docs": [1], "worst": [1], "all": [1]}
    assert document["configurations"][2] == {
        "trial": 2,
        "configuration": "max_num_seqs=512",
        "state": "failed",
        "failure": "out_of_memory_startup",
        "score": None,
        "shares": {"chat": None, "docs": None, "worst": None, "all": None},
    }


def test_many_configurations_are_cut_on_the_terminal_only(traffic_folder: Path) -> None:
    output = run_here(traffic_folder, "study", "tradeoff", "many")
    header = next(line for line in lines(output.out) if line[0] == "class")
    assert header == ["class", "#0", *(f"#{number}" for number in range(9, 20))]
    assert "8 more, 1 of them without a result (engine_crash 1): --csv has all\n" in output.out
    assert "each configuration was measured at its own capacity" in output.out
    assert run_here(traffic_folder, "study", "tradeoff", "many", "--csv").out.splitlines()[0].count(",") == 21


def test_requests_of_the_winner_and_its_rates(traffic_folder: Path) -> None:
    output = run_here(traffic_folder, "study", "requests", "mixed")
    assert (output.code, output.err) == (0, "")
    found = lines(output.out)
    assert output.out.startswith("mixed #1 (measured): requests of 1 benchmark by planned prompt length\n")
    assert found[1] == ["class", "tokens", "offered", "completed", "not", "sent", "timed", "out"]
    assert found[3:7] == [
        ["chat", "1–64", "1", "1", "0", "0"],
        ["chat", "65–128", "1", "0", "0", "1"],
        ["docs", "unknown", "1", "0", "1", "0"],
        ["all", "3", "1", "1", "1"],
    ]
    assert ["16", "100", "100", "41.5", "103.5", "114.2", "22.5", "99.9%", "held,", "the", "capacity"] in found
    assert ["64", "100", "0", "–", "–", "–", "–", "0%", "missed", "p95_ttft_ms<1000"] in found


def test_requests_for_programs(traffic_folder: Path) -> None:
    output = run_here(traffic_folder, "study", "requests", "mixed", "--trial", "1", "--csv")
    assert output.out.splitlines() == [
        "class,from,to,offered,completed,not_sent,timed_out",
        "chat,1,64,1,1,0,0",
        "chat,65,128,1,0,0,1",
        "docs,,,1,0,1,0",
    ]


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["study", "tradeoff", "closed"], ["'closed' has no request classes", "--workload FILE"]),
        (["study", "requests", "closed"], ["'closed' has no request classes", "--workload FILE"]),
        (
            ["study", "tradeoff", "without-slo"],
            ["'without-slo' have no SLO", "`slo:`", "`tuner study requests without-slo`"],
        ),
        (["study", "tradeoff", "new"], ["'new' has no finished trial"]),
        (["study", "tradeoff", "mixed", "--csv", "--json"], ["exclude each other"]),
        (["study", "tradeoff", "nothing"], ["'nothing'", "mixed"]),
        (["study", "requests", "mixed", "--trial", "9"], ["has no trial 9;", "`tuner study trials mixed`"]),
        (["study", "requests", "mixed", "--trial", "1", "--round", "1"], ["trial 1 round 1", "nowhere", "host:gpu0"]),
        (
            ["study", "requests", "mixed", "--trial", "2"],
            ["out_of_memory_startup in ready", "`tuner study trial 'mixed#2'`"],
        ),
        (["study", "requests", "many"], ["trial 0 has no recorded requests in nowhere"]),
    ],
)
def test_mistakes_are_one_line(traffic_folder: Path, argv: list[str], parts: list[str]) -> None:
    output = run_here(traffic_folder, *argv)
    assert (output.code, output.out) == (2, "")
    assert output.err.count("\n") == 1
    assert [part for part in parts if part not in output.err] == []
