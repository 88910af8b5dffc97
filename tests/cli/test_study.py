"""A study of `tuner optimize`, its numbers, and its start."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import optuna
import pytest

from records.trials import Provenance, StudyRecord
from storage import normalise_url, open_store
from tests.cli.command import PATHS, TREE, CommandOutput, everything_in, one_line, ran, run_apart, run_here
from tests.fakes import install_fake_vllm
from tuner import __version__
from tuner.study.optuna_storage import RULED_OUT

ENQUEUED = '{"speculative": "suffix", "suffix_tokens": 8, "max_num_seqs": 16}'
FAILING = '{"speculative": "off", "max_num_seqs": 32}'
TRIALS = 5


@dataclass(frozen=True)
class Study:
    """A study that ended: its folder, its command line and the result of the command."""

    folder: Path
    argv: tuple[str, ...]
    printed: CommandOutput


@pytest.fixture(scope="module")
def study(home: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Suffix decoding is 1/0.7 times as fast at temperature 0 on the fake; 32 sequences run out of memory."""
    folder = tmp_path_factory.mktemp("study")
    vllm = install_fake_vllm(
        tmp_path_factory.mktemp("bin"), noise=0.001, fail_when=[{"when": {"max_num_seqs": "32"}, "fail": "oom"}]
    )
    argv = (
        *("optimize", "--vllm", str(vllm), "--model", str(model), "--space", "speculation-cpu", "--temperature", "0"),
        *("--users", "10", "--prompts", "20", "--input-len", "128", "--output-len", "64", "--study", "small one"),
        *("--enqueue", ENQUEUED, "--enqueue", FAILING, "--confirm-rounds", "2", "--finalists", "1"),
        *("--trials", str(TRIALS), "--no-reduce", "--plain", "--json", "--", "--max-model-len", "1024"),
    )
    return Study(folder, argv, run_apart(folder, *argv))


def test_optimize_prints_one_json_document(study: Study) -> None:
    assert study.printed.code == 0, study.printed.err
    result = json.loads(study.printed.out)
    assert result["study"] == "small one"
    assert (result["ending"], result["trials"], result["mlflow_complete"]) == ("done", TRIALS, True)
    assert result["engine"] == {"name": "vllm", "version": "0.32.0+fake"}
    assert result["failures"]["out_of_memory_startup"] >= 1
    assert sum(result["states"].values()) == TRIALS + 4  # two rounds of one finalist and the defaults
    assert (result["script"], result["conclusion"]["confirmed"]) == ("best_serve.sh", True)
    assert result["conclusion"]["contenders"][0]["metrics"]["output_throughput"]["ratio"] == pytest.approx(
        1 / 0.7, rel=0.1
    )


def test_progress_goes_to_stderr(study: Study) -> None:
    lines = study.printed.err.splitlines()
    assert [line for line in lines if line.startswith(f"[1/{TRIALS}] #0 ok, score 1.000: output_throughput ")]
    assert [line for line in lines if line.startswith("[3/") and "] #2 failed, out_of_memory_startup: " in line]
    assert len([line for line in lines if line.startswith("[")]) == TRIALS + 4
    assert [line for line in lines if len(line) > 140] == []
    assert "Traceback" not in study.printed.err


def test_studies_shows_the_result_of_each(study: Study) -> None:
    (row,) = json.loads(run_here(study.folder, "study", "list", "--json").out)
    reason = json.loads(study.printed.out)["conclusion"]["reason"]
    assert (row["study"], row["provenance"], row["hardware"]) == ("small one", "measured", "CPU")
    assert (row["trials"], row["remeasurements"], row["reason"]) == (TRIALS, 4, reason)
    printed = run_here(study.folder, "study", "list")
    assert (printed.code, printed.err) == (0, "")
    assert f"{TRIALS} + 4" in printed.out
    assert "small one" in printed.out


def test_trials_is_a_table(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    wide = run_here(study.folder, "study", "trials").out
    assert "speculative=suffix suffix_tokens=8 max_num_seqs=16" in wide
    assert 100 < max(map(len, wide.splitlines())) <= 140
    monkeypatch.delenv("COLUMNS")
    printed = run_here(study.folder, "study", "trials")
    assert (printed.code, printed.err) == (0, "")
    assert printed.out.splitlines()[0] == "small one (measured)"
    assert "out_of_memory_startup:" in printed.out
    assert "speculative=suffix" in printed.out
    assert max(map(len, printed.out.splitlines())) <= 100


def test_trials_for_programs(study: Study) -> None:
    rows = json.loads(run_here(study.folder, "study", "trials", "--json").out)
    assert sorted({row["number"] for row in rows}) == list(range(TRIALS))
    assert len(rows) == TRIALS + 4
    table = list(csv.DictReader(io.StringIO(run_here(study.folder, "study", "trials", "--csv").out)))
    assert [int(row["number"]) for row in table] == [row["number"] for row in rows]


def test_best_names_winner_gain_and_command(study: Study) -> None:
    winner = json.loads(study.printed.out)["conclusion"]["winner"]
    answer = json.loads(run_here(study.folder, "study", "show", "--json").out)
    assert (answer["winner"], answer["study"]) == (winner, "small one")
    assert '"method":"suffix"' in answer["command"]
    plain = run_here(study.folder, "study", "show", "small one").out
    assert plain.startswith(f"trial {winner} is better than the defaults beyond the noise: score ")
    assert "the winner beside the defaults, measured: medians of 2 rounds\n" in plain
    assert answer["command"] in plain
    assert [each["value"] for each in answer["flag_effects"] if each["name"] == "speculative"] == ["suffix"]
    rows = json.loads(run_here(study.folder, "study", "trials", "--json").out)
    worked = [row for row in rows if row["state"] == "ok" and not row["round"]]
    basis = f"estimated from {len(worked)} measured trials"
    assert basis in " ".join(plain.split())
    assert basis in (study.folder / "best_serve.sh").read_text()


def test_show_prints_everything_about_a_trial(study: Study) -> None:
    printed = ran(study.folder, "study", "trial", "0")
    assert printed.out.startswith("#0  ok  baseline")
    for part in ("the defaults\n", "\ncommand ", "\nenvironment ", "\noutput_throughput ", "\ntime "):
        assert part in printed.out
    failed = run_here(study.folder, "study", "trial", "2").out
    assert failed.startswith("#2  failed")
    assert "out_of_memory_startup in ready, culprit configuration: " in failed
    assert "CUDA out of memory" in failed
    assert json.loads(run_here(study.folder, "study", "trial", "2", "--json").out)[0]["number"] == 2


def test_export_writes_any_trial_that_succeeded(study: Study, tmp_path: Path) -> None:
    script = tmp_path / "one.sh"
    printed = run_here(study.folder, "study", "export", "--trial", "1", "-o", str(script))
    assert (printed.code, printed.out) == (0, f"wrote {script}, a bash script\n")
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert '"method":"suffix"' in script.read_text()
    assert (study.folder / "best_serve.sh").is_file()


def test_a_format_has_its_own_file(study: Study) -> None:
    before = everything_in(study.folder)
    printed = run_here(study.folder, "study", "export", "--format", "compose")
    assert set(everything_in(study.folder)) - set(before) == {"compose.yaml"}
    assert printed.out == "wrote compose.yaml, a Docker Compose file\n"
    (study.folder / "compose.yaml").unlink()


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["study", "trial", "99"], ["study 'small one' has no trial 99", "tuner study trials"]),
        (["study", "trials", "other"], ["STUDY 'other'", "studies: small one"]),
        (["study", "export", "--trial", "99"], ["--trial 99", "see `tuner study trials 'small one'`"]),
        (
            ["study", "export", "--format", "kserve"],
            ["--format 'kserve': it reads models from a hub, and ", "choose another"],
        ),
        (
            ["study", "export", "--format", "helm"],
            ["--format 'helm': the formats are script, command, vllm-config, compose, "],
        ),
        (["study", "export", "--format", "compose", "-o", "nowhere/x"], ["-o 'nowhere/x': the file cannot be written"]),
        (
            ["study", "export", "-o", "nowhere/x.sh"],
            ["-o 'nowhere/x.sh': the file cannot be written", "choose another file"],
        ),
    ],
)
def test_mistakes_about_a_study(study: Study, argv: list[str], parts: list[str]) -> None:
    before = everything_in(study.folder)
    one_line(run_here(study.folder, *argv), *parts)
    assert everything_in(study.folder) == before


def test_studies_shows_every_study_of_a_database_oldest_first(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path / 'two.db'}")) as store:
        keep = {"winner": 0, "keeps": "defaults", "keep_defaults": True, "reason": "keep them"}
        for name, conclusion in (("[old]", keep), ("new", None)):
            premise = {"model": {"name": "a/b"}, "engine": {"name": "vllm", "version": "0.25.1"}}
            made = datetime(2026, 11, 23, 9, 5, tzinfo=UTC)
            store.create_study(StudyRecord(name, made, Provenance.SIMULATED, premise, {}, conclusion))
    old, new = json.loads(run_here(tmp_path, "study", "list", "--storage", "two.db", "--json").out)
    assert old == {
        "study": "[old]",
        "provenance": "simulated",
        "created_at": "2026-11-23T09:05:00+00:00",
        "model": "a/b",
        "hardware": None,
        "engine": {"name": "vllm", "version": "0.25.1"},
        "trials": 0,
        "remeasurements": 0,
        "winner": 0,
        "keeps": "defaults",
        "keep_defaults": True,
        "reason": "keep them",
    }
    assert (new["study"], new["winner"], new["reason"]) == ("new", None, None)
    lines = run_here(tmp_path, "study", "list", "--storage", "two.db").out.splitlines()
    (first,) = (i for i, line in enumerate(lines) if "[old]" in line and "keep them" in line)
    (second,) = (i for i, line in enumerate(lines) if "new" in line and "none yet" in line)
    assert first < second


def test_studies_of_an_empty_database_are_the_user_s_mistake(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path / 'none.db'}").close()
    one_line(
        run_here(tmp_path, "study", "list", "--storage", "none.db"),
        "the database has no study; run `tuner optimize` first",
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sync_finds_nothing_to_log(study: Study) -> None:
    printed = run_here(study.folder, "study", "sync")
    assert (printed.code, printed.out) == (0, "logged 0 trials\n")


@pytest.mark.usefixtures("without_ray")
def test_the_same_command_runs_no_trial_and_a_larger_budget_continues(study: Study) -> None:
    again = json.loads(run_here(study.folder, *study.argv).out)
    first = json.loads(study.printed.out)
    assert {**again, "seconds": None} == {**first, "seconds": None}
    more = [str(TRIALS + 1) if word == str(TRIALS) else word for word in study.argv]
    printed = run_here(study.folder, *more)
    assert json.loads(printed.out)["trials"] == TRIALS + 1
    assert f"{TRIALS + 1} trials ({TRIALS} finished before)" in printed.err
    assert f"/{TRIALS + 1}] #0 " not in printed.err


@pytest.fixture
def failing(model: Path, tmp_path: Path, without_ray: None) -> Callable[..., CommandOutput]:
    """`tuner optimize` on a fake vLLM with a given behaviour."""

    def run(*argv: str, **behaviour: object) -> CommandOutput:
        vllm = install_fake_vllm(tmp_path / "bin", **behaviour)
        start = ["--vllm", str(vllm), "--model", str(model), "--space", "sweep-cpu", "--plain", "--confirm-rounds", "0"]
        load = ["--users", "10", "--prompts", "20", "--input-len", "64", "--output-len", "32"]
        return run_here(tmp_path, "optimize", *start, *load, *argv)

    return run


def test_a_study_whose_defaults_fail_stops_and_names_the_reason(
    failing: Callable[..., CommandOutput], tmp_path: Path
) -> None:
    printed = failing("--trials", "6", fail="oom")
    assert printed.code == 1
    assert "1 trial: 1 failed" in printed.out
    words = " ".join(printed.out.split())
    assert "stopped: the defaults fail, and no given configuration works: out_of_memory_startup: torch" in words
    assert 'its message names no flag: --enqueue \'{"max_num_seqs": ' in words
    assert "max_model_len" not in words
    assert "Traceback" not in printed.err
    best = run_here(tmp_path, "study", "show")
    assert best.code == 1
    assert "no trial of study" in best.out
    assert "out_of_memory_startup" in best.out


def test_a_model_without_weights_ends_the_study_after_two_starts_with_the_next_step(
    failing: Callable[..., CommandOutput],
) -> None:
    printed = failing("--trials", "6", fail="weights")
    assert printed.code == 1
    assert "1 trial: 1 pending" in printed.out
    words = " ".join(printed.out.split())
    assert (
        "infrastructure fails: environment_broken: RuntimeError: Cannot find any model weights with `/model`" in words
    )
    assert "the model's files are missing or cut off: download them with `hf download`, or give a folder" in words


def test_a_study_whose_given_configurations_fail_for_one_reason_stops(failing: Callable[..., CommandOutput]) -> None:
    given = (word for seqs in (8, 16, 32) for word in ("--enqueue", f'{{"max_num_seqs": {seqs}}}'))
    printed = failing("--trials", "6", *given, fail="oom")
    assert printed.code == 1
    assert "3 trials: 3 failed" in printed.out
    assert "stopped: every trial fails for one reason: out_of_memory_startup: " in printed.out
    assert "the server lacks memory" in printed.out


def test_a_study_without_a_success_exits_1(failing: Callable[..., CommandOutput], tmp_path: Path) -> None:
    printed = failing("--trials", "2", "--json", fail="kv")
    assert printed.code == 1
    result = json.loads(printed.out)
    assert (result["ending"], result["failures"]) == ("defaults_failed", {"kv_cache_too_small": 1})
    assert (result["script"], result["conclusion"]) == (None, None)
    assert not (tmp_path / "best_serve.sh").exists()


def test_a_server_that_is_not_ready_within_the_startup_timeout(failing: Callable[..., CommandOutput]) -> None:
    printed = failing("--trials", "1", "--startup-timeout", "1s", "--json", fail="hang")
    assert printed.code == 1
    assert json.loads(printed.out)["failures"] == {"startup_timeout": 1}


def test_a_flag_that_only_the_server_refuses_fails_the_trials(failing: Callable[..., CommandOutput]) -> None:
    """The fake's parser cannot be read; a real vLLM's can, and then the command ends before the study starts."""
    printed = failing("--trials", "4", "--", "--load-fromat", "dummy")
    assert printed.code == 1
    words = " ".join(printed.out.split())
    assert "stopped: the defaults fail, and no given configuration works: invalid_configuration: " in words
    assert "unrecognized arguments: --load-fromat dummy" in printed.out


def test_space_has_the_reason_why_a_t4_has_no_fp8_kv_cache(tmp_path: Path) -> None:
    answer = json.loads(run_here(tmp_path, "study", "space", "--gpu", "t4", "--vllm-version", "0.25.1", "--json").out)
    offered = {parameter["name"] for parameter in answer["parameters"]}
    reasons = {(lost["parameter"], lost["value"]): lost["reason"] for lost in answer["dropped"]}
    assert "8.9" in reasons["kv_cache_dtype", "fp8"]
    assert "Tesla T4 has 7.5" in reasons["kv_cache_dtype", "fp8"]
    assert "max_num_seqs" in offered
    assert "kv_cache_dtype = fp8 " in run_here(tmp_path, "study", "space", "--gpu", "t4").out
    h200 = json.loads(run_here(tmp_path, "study", "space", "--gpu", "h200", "--vllm-version", "0.25.1", "--json").out)
    assert "kv_cache_dtype" in {parameter["name"] for parameter in h200["parameters"]}


def test_space_shows_the_named_configurations(tmp_path: Path) -> None:
    answer = json.loads(run_here(tmp_path, "study", "space", "--gpu", "cpu", "--space", "faults-cpu", "--json").out)
    assert {*answer["named"]} == {"rejected", "dies-at-start"}


def test_doctor(tmp_path: Path) -> None:
    vllm = install_fake_vllm(tmp_path / "bin")
    answer = json.loads(run_here(tmp_path, "doctor", "--vllm", str(vllm), "--json").out)
    assert (answer["vllm"], answer["vllm_version"], answer["problem"]) == (str(vllm), "0.32.0+fake", None)
    assert answer["started_processes"] == []
    printed = run_here(tmp_path, "doctor", "--vllm", str(tmp_path / "none"))
    assert printed.code == 1
    assert "  runs     nothing: there is no vLLM" in printed.out.splitlines()
    assert "  executable  none found" in printed.out.splitlines()
    assert "{" not in printed.out


FLAGS = ("--engine", "simulated", "--prompts", "8", "--users", "4", "--trials", "3", "--confirm-rounds", "0")


REASONS = {RULED_OUT: "a rule of the space", "dropped": "the same server"}


def test_show_says_what_a_number_without_a_trial_is(tmp_path: Path) -> None:
    run_here(tmp_path, "optimize", *FLAGS)
    url = normalise_url(str(tmp_path / "tuner_study" / "tuner.db"))
    study = optuna.load_study(study_name="qwen2.5-0.5b-t4-users4-prompts8", storage=url)
    number = len(study.trials)
    for attribute, reason in REASONS.items():
        study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.PRUNED, user_attrs={attribute: reason}))
    run_here(tmp_path, "optimize", *FLAGS[:-3], "5", *FLAGS[-2:])
    for suggested, reason in enumerate(REASONS.values(), number):
        printed = run_here(tmp_path, "study", "trial", str(suggested))
        assert printed.code == 2
        assert f"has no trial {suggested}: the sampler suggested it, and it never ran: {reason}" in printed.err
    assert f"were dropped before a launch: {number}, {number + 1}" in run_here(tmp_path, "study", "trials").out


HEAVY = (
    "alembic",
    "mlflow",
    "numpy",
    "optuna",
    "pandas",
    "pyarrow",
    "pydantic",
    "ray",
    "rich",
    "scipy",
    "sqlalchemy",
    "yaml",
)
PROBE = """
import contextlib, io, sys
from typer.main import get_command
from tuner.cli.help import commands_in
from tuner.cli.main import app, main
for words in [], *(path.split() for path, _ in commands_in(get_command(app))):
    sys.argv = ["tuner", *words, "--help"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    print(*words, *({name.split(".")[0] for name in sys.modules} & set(HEAVY)))
"""


def test_no_help_imports_anything_heavy() -> None:
    """Typer reads the options of a command with pydantic."""
    code = f"HEAVY = {HEAVY!r}{PROBE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    group, *commands = done.stdout.splitlines()
    assert group == ""
    assert commands == [f"{path} pydantic" for path in PATHS]


def test_every_command_is_there() -> None:
    top = "optimize simulate capacity size quality recheck serve mcp doctor install-vllm traffic study server service"
    assert {*TREE.commands} == {*top.split()}
    wanted = "list show trials trial compare tradeoff requests export report ui sync presets space kernels"
    assert {*TREE.commands["study"].commands} == {*wanted.split()}
    assert {*TREE.commands["server"].commands} == {"load", "verify", "compare", "drift"}
    wanted = "submit list status watch logs stop cancel resume delete drift token"
    assert {*TREE.commands["service"].commands} == {*wanted.split()}


def test_without_a_command_the_help_is_shown(tmp_path: Path) -> None:
    output = run_here(tmp_path)
    assert (output.code, output.err) == (2, "")
    assert output.out.startswith("Usage: tuner ")
    assert "\n  optimize " in output.out


@pytest.mark.parametrize("command", [None, *PATHS])
def test_h_is_help(tmp_path: Path, command: str | None) -> None:
    words = command.split() if command else []
    output = run_here(tmp_path, *words, "-h")
    assert (output.code, output.err) == (0, "")
    assert output.out.startswith(f"Usage: tuner {command or '[OPTIONS]'} ")
    assert output == run_here(tmp_path, *words, "--help")


def test_the_version_is_printed(tmp_path: Path) -> None:
    output = run_here(tmp_path, "--version")
    assert (output.code, output.out, output.err) == (0, f"tuner {__version__}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_options(tmp_path: Path, shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TUNER_COMPLETE", f"complete_{shell}")
    typed = {"COMP_WORDS": "tuner study pre", "COMP_CWORD": "2", "_TYPER_COMPLETE_ARGS": "tuner study pre"}
    for name, value in {**typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}.items():
        monkeypatch.setenv(name, value)
    assert "presets" in run_here(tmp_path).out


def test_the_first_lines_name_the_gpus_of_a_trial(tmp_path: Path) -> None:
    load = ("--users", "2", "--prompts", "4", "--trials", "1", "--confirm-rounds", "0", "--baseline-repeats", "1")
    engine = ("--engine", "simulated", "--gpu", "h200", "--gpus-per-trial", "2", "--vllm-version", "0.25.1")
    done = ran(tmp_path, "optimize", *engine, *load, "--plain")
    lines = done.err.splitlines()
    assert lines[0].endswith(": vLLM 0.25.1 on 2 × NVIDIA H200; use --engine vllm without --gpu to measure")
    assert (
        "`tuner study space --gpu h200 --vllm-version 0.25.1 --gpus-per-trial 2` lists them with the reasons"
        in lines[2]
    )


def test_the_first_lines_have_the_goals_and_warn_of_an_slo_that_can_hardly_be_met(tmp_path: Path) -> None:
    load = ("--users", "2", "--prompts", "4", "--trials", "1", "--confirm-rounds", "0", "--baseline-repeats", "1")
    goals = ("--slo", "p99_ttft_ms<1", "--objective", "output_throughput")
    done = run_here(tmp_path, "optimize", "--engine", "simulated", *load, *goals, "--plain")
    lines = done.err.splitlines()
    assert "SLOs: p99_ttft_ms<1" in lines
    assert "score weights: output_throughput 40, success_rate 10" in lines
    warning = next(index for index, line in enumerate(lines) if line.startswith("SLO p99_ttft_ms<1 can hardly be met"))
    assert warning < next(index for index, line in enumerate(lines) if line.startswith("[1/1]"))
