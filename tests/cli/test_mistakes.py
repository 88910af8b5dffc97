"""Mistakes of the user: one line with the rule, the value and the next step, exit code 2, and nothing written."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import OperationalError

from tests.cli.command import CommandOutput, refused, run_here
from tests.fakes import install_fake_vllm
from tests.fakes.stub_engine import StubEngine
from tuner.engines.base import EngineInfo
from tuner.executors.base import InlineExecutor
from tuner.use_cases import optimize as optimize_run

Optimize = Callable[..., CommandOutput]
FLAGS = frozenset({"--max-model-len", "--load-format", "--compilation-config", "--enable-prefix-caching"})


class KnownFlags(StubEngine):
    """An engine with a list of flags that measures nothing."""

    def info(self) -> EngineInfo:
        return replace(super().info(), flags=FLAGS)


@pytest.fixture
def optimize(folder: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Optimize:
    """`tuner optimize` with a model, a fake vLLM and an executor that must not run a trial."""
    vllm = install_fake_vllm(tmp_path / "bin")
    monkeypatch.setattr(optimize_run, "_executor", lambda *_: InlineExecutor(lambda _: KnownFlags(lambda *_: {})))

    def run(*argv: str) -> CommandOutput:
        load = ["--users", "10", "--prompts", "20", "--input-len", "64", "--output-len", "32"]
        return run_here(folder, "optimize", "--vllm", str(vllm), "--model", str(model), *load, *argv)

    return run


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (
            ["--preset", "nope"],
            [
                "--preset 'nope'",
                "presets: chat, code, conversations, documents-8b, lilo, liso, llama2-7b-awq-t4, mixed, phi4-mini-l4",
            ],
        ),
        (["--trails", "3"], ["there is no option --trails; did you mean --trials?"]),
        (["--zzz"], ["there is no option --zzz; see `tuner optimize --help-all`"]),
        (["--max-num-seqs", "4"], ["--max-num-seqs is a flag of `vllm serve`; write it after `--`"]),
        (["stray"], ["'stray' is not an option of `tuner optimize`", "flags of `vllm serve` follow `--`"]),
        (["--slo", "p99_speed<3"], ["--slo 'p99_speed<3'", "no metric is called 'p99_speed'", "did you mean"]),
        (["--slo", "fast"], ["--slo 'fast'", "METRIC<VALUE", "for example 'p99_tpot_ms<50'"]),
        (
            ["--objective", "speed"],
            ["--objective 'speed'", "no metric is called 'speed'", "metrics: output_"],
        ),
        (["--objective", "output_throughput:x"], ["weight must be a number above 0", "'output_throughput:40'"]),
        (["--space", "nope"], ["no search space is called 'nope'", "cpu, faults-cpu"]),
        (["--trials", "0"], ["--trials 0", "at least 1 is needed"]),
        (["--trials", "many"], ["--trials 'many': not a whole number; see `tuner optimize --help-all`"]),
        (["--timeout", "soon"], ["--timeout 'soon': not a duration", "2h"]),
        (["--timeout", "0"], ["--timeout '0': a duration is longer than 0", "2h"]),
        (["--storage", "nowhere/x.db"], ["--storage 'nowhere/x.db'", "there is no folder", "make it first"]),
        (["--storage", "nosql://x"], ["nosql is not a supported database", "use SQLite"]),
        (["--storage", ""], ["the storage is empty", "give a file"]),
        (["--storage", "postgresql://127.0.0.1:1/x"], ["127.0.0.1:1/x", "onnection refused", "check host, port"]),
        (["--model", "./nowhere"], ["--model './nowhere'", "no config.json", "give a model folder"]),
        (["--model", "nobody/nothing"], ["--model 'nobody/nothing'", "HF_HUB_OFFLINE is set", "download it"]),
        (["--model", "~no-such-user/model"], ["--model '~no-such-user/model'", "the folder has no config.json"]),
        (["--space", "vllm", "--draft-model", "./d"], ["--draft-model './d'", "the folder has no config.json"]),
        (["--draft-model", "./d"], ["--draft-model './d'", "no parameter of space 'cpu' takes a draft model"]),
        (
            ["--space", "vllm", "--checkpoint", "awq=nobody/awq"],
            ["--checkpoint 'nobody/awq'", "HF_HUB_OFFLINE is set", "download it"],
        ),
        (["--model", ""], ["--model ''", "give a model folder or a hub name"]),
        (["--vllm", "/nowhere/vllm"], ["--vllm '/nowhere/vllm': there is no such file", "VENV/bin/vllm"]),
        (["--workers", "0"], ["--workers '0'", "at least 1"]),
        (["--users", "0"], ["--users 0", "greater than or equal to 1"]),
        (["--input-len", "5000"], ["5000 + 32 tokens", "context of 4096", "lower --input-len"]),
        (["--env", "X"], ["--env 'X'", "the form is NAME=VALUE"]),
        (["--checkpoint", "fp8"], ["--checkpoint 'fp8': the form is METHOD=MODEL"]),
        (["--env", "A=1", "--env", "A=2"], ["--env 'A=2'", "A is given twice"]),
        (["--engine", "other"], ["--engine 'other'", "engines: auto, vllm"]),
        (["--study", "../elsewhere"], ["--study '../elsewhere'", "no slash", "choose another"]),
        (["-o", "nowhere/best.sh"], ["-o 'nowhere/best.sh'", "there is no folder", "a folder that exists"]),
        (["-o", "."], ["-o '.'", "this is a folder"]),
        (["--", "--port", "1"], ["server argument '--port': the tuner sets this flag", "leave it out"]),
        (["--only", "max_seqs"], ["--only 'max_seqs'", "did you mean max_num_seqs?"]),
        (["--enqueue", "nonsense"], ["--enqueue 'nonsense'", "known:"]),
        (["--enqueue", '{"max_seqs": 3}'], ["--enqueue", "max_seqs"]),
        (["--enqueue", '{"max_num'], ["--enqueue '{\"max_num'", "not valid JSON"]),
    ],
)
def test_found_before_anything_starts(
    optimize: Optimize, folder: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], parts: list[str]
) -> None:
    def never(*_: object) -> InlineExecutor:
        raise AssertionError("an executor was started")

    monkeypatch.setattr(optimize_run, "_executor", never)
    refused(optimize(*argv), folder, *parts)


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (
            ["--", "--load-fromat", "dummy"],
            ["'--load-fromat': this flag is not simulated", "did you mean --load-format?"],
        ),
        (["--", "--zz"], ["'--zz': this flag is not simulated", "measure it with --engine vllm"]),
        (["--storage", "sqlite://"], ["a database in memory is lost", "give a file"]),
    ],
)
def test_found_before_anything_is_written(optimize: Optimize, folder: Path, argv: list[str], parts: list[str]) -> None:
    refused(optimize(*argv), folder, *parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("description: d\nparameters:\n  a: {description: d, type: int, low: 1\n  b: [", [":4: not valid YAML"]),
        (
            "description: d\nparameters:\n  a: {description: d, type: int, low: 9, high: 3, flag: --max-num-seqs}\n",
            [":3: parameters.a: low 9 is above high 3"],
        ),
    ],
)
def test_a_wrong_space_is_named_by_file_and_line(
    optimize: Optimize, folder: Path, tmp_path: Path, text: str, parts: list[str]
) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(text)
    refused(optimize("--space", str(file)), folder, *(f"{file}{part}" for part in parts))


def test_without_a_vllm_the_message_has_the_installation(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    printed = run_here(folder, "optimize", "--trials", "60", "--engine", "vllm")
    refused(printed, folder, "no vLLM found", "pip install vllm", "on PATH, or its path into TUNER_VLLM")


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["trials"], ["no database at tuner_study/tuner.db", "tuner optimize", "--storage"]),
        (["best"], ["no database at tuner_study/tuner.db"]),
        (["show", "99"], ["no database at tuner_study/tuner.db"]),
        (["export"], ["no database at tuner_study/tuner.db"]),
        (["sync"], ["no database at tuner_study/tuner.db"]),
        (["ui"], ["no database at tuner_study/tuner.db"]),
        (["trials", "--json", "--csv"], ["--json and --csv exclude each other"]),
        (["show"], ["missing argument 'N'", "tuner show --help"]),
        (["optimize", "--seed"], ["--seed needs a value", "tuner optimize --help-all"]),
        (["show", "x"], ["N: not a whole number; see `tuner show --help`"]),
        (["space", "--gpu", "nope"], ["no known hardware is called 'nope'", "known: t4"]),
        (["space", "--space", "nope"], ["no search space is called 'nope'"]),
        (["space", "--vllm-version", "x"], ["'x' is not a version", "0.32.0"]),
        (["ui", "--port", "0"], ["--port '0': at least 1 is needed; see `tuner ui --help`"]),
        (["optimise"], ["no such command 'optimise'; did you mean 'optimize'?"]),
    ],
)
def test_other_commands(folder: Path, argv: list[str], parts: list[str]) -> None:
    refused(run_here(folder, *argv), folder, *parts)


def test_debug_shows_the_traceback_and_the_default_does_not(
    optimize: Optimize, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_: object) -> InlineExecutor:
        raise RuntimeError("boom")

    monkeypatch.setattr(optimize_run, "_executor", break_down)
    printed = optimize()
    assert printed.code == 1
    assert printed.err == "tuner: internal error: RuntimeError: boom (run with `tuner --debug …` for the traceback)\n"
    vllm, model = folder.parent / "bin" / "vllm", folder.parent / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    printed = run_here(folder, "--debug", "optimize", "--vllm", str(vllm), "--model", str(model))
    assert printed.code == 1
    assert printed.err.startswith("Traceback (most recent call last):")
    assert "in break_down" in printed.err


def test_a_database_error_that_optuna_wraps_is_one_line_with_its_reason(
    optimize: Optimize, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_the_database(*_: object) -> InlineExecutor:
        cause = OperationalError("INSERT", {}, sqlite3.OperationalError("disk I/O error"))
        raise StorageInternalError("An exception is raised during the commit. … exceeding max length. ") from cause

    monkeypatch.setattr(optimize_run, "_executor", lose_the_database)
    printed = optimize()
    assert printed.code == 1
    assert printed.err == (
        "tuner: the database failed: disk I/O error; check that it runs and has space, "
        "then run the same command again\n"
    )
