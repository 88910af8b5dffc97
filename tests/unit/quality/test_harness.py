"""Tasks of lm-evaluation-harness, with a stub of its program."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tuner.engines.server.traffic import PlainJob
from tuner.errors import SettingError
from tuner.processes.records import ProcessRecords
from tuner.quality.ask import AskFailed, Target
from tuner.quality.harness import HarnessTask, StartProgram, graded, harness_task


@pytest.fixture
def start(tmp_path: Path) -> StartProgram:
    """Starts recorded processes."""
    records = ProcessRecords(tmp_path / "processes")
    return lambda argv, environment, log, cwd: PlainJob(argv, environment, log, cwd, records)


TARGET = Target("http://127.0.0.1:8000/v1/completions", "m", {"Authorization": "Bearer key"})


def sample(doc: int, filtered: str = "none", **metrics: Any) -> dict[str, Any]:
    return {"doc_id": doc, "filter": filtered, "metrics": list(metrics), **metrics}


def samples(folder: Path, *rows: dict[str, Any]) -> Path:
    file = folder / "samples_t_2026.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def program(folder: Path, body: str) -> Path:
    """Write a stub of `lm_eval` that knows where results go."""
    file = folder / "lm_eval"
    found = 'while [ "$1" != --output_path ]; do shift; done; out=$2/m; mkdir -p "$out"'
    file.write_text(f'#!/bin/sh\nprintf "%s\\n" "$OPENAI_API_KEY" "$@"\n{found}\n{body}\n')
    file.chmod(0o755)
    return file


def test_answers_are_in_the_order_of_the_questions(tmp_path: Path) -> None:
    rows = (
        sample(2, exact_match=0.0),
        sample(0, exact_match=1.0),
        sample(1, exact_match=0.0),
        sample(10, exact_match=1),
    )
    assert list(graded(samples(tmp_path, *rows))) == [True, False, False, True]


def test_the_first_of_several_filters_counts(tmp_path: Path) -> None:
    rows = (
        sample(0, "strict", exact_match=0),
        sample(1, "strict", exact_match=1),
        sample(0, "flexible", exact_match=1),
    )
    assert list(graded(samples(tmp_path, *rows))) == [False, True]


def test_accuracy_counts_before_normalised_accuracy(tmp_path: Path) -> None:
    assert list(graded(samples(tmp_path, sample(0, acc_norm=0.0, acc=1.0)))) == [True]


@pytest.mark.parametrize(
    ("metrics", "part"),
    [({"bleu": 0.3}, "it has bleu"), ({"exact_match": 0.5}, "it has exact_match"), ({}, "it has none")],
)
def test_a_metric_that_is_neither_right_nor_wrong_is_refused(
    tmp_path: Path, metrics: dict[str, Any], part: str
) -> None:
    with pytest.raises(AskFailed, match=f"no metric that is right or wrong: {part}"):
        list(graded(samples(tmp_path, sample(0, **metrics))))


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"doc_id": "x", "exact_match": 1}'])
def test_a_hostile_file_of_samples_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "samples_t.jsonl"
    file.write_text(text)
    with pytest.raises(AskFailed, match="samples that cannot be read"):
        list(graded(file))


def test_the_program_gets_the_server_and_its_key(tmp_path: Path, start: StartProgram) -> None:
    row = json.dumps(sample(0, exact_match=1.0))
    task = HarnessTask(("gsm8k", "arc_easy"), program(tmp_path, f"echo '{row}' >\"$out/samples_gsm8k_1.jsonl\""))
    assert task.right(start, TARGET, "tok", tmp_path, threading.Event()) == [True]
    said = (tmp_path / "lm-eval.log").read_text().splitlines()
    assert said[0] == "key"
    assert said[said.index("--tasks") + 1] == "gsm8k,arc_easy"
    settings = dict(each.split("=", 1) for each in said[said.index("--model_args") + 1].split(","))
    assert (settings["base_url"], settings["model"], settings["tokenizer"]) == (TARGET.url, "m", "tok")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo no such task; exit 1", "lm_eval failed: no such task; its log is"),
        ("exit 0", "lm_eval asked no question"),
    ],
)
def test_a_program_that_fails_is_named_with_its_log(
    tmp_path: Path, start: StartProgram, body: str, message: str
) -> None:
    with pytest.raises(AskFailed, match=message):
        HarnessTask(("t",), program(tmp_path, body)).right(start, TARGET, "tok", tmp_path, threading.Event())


def test_a_cancelled_check_ends_the_program(tmp_path: Path, start: StartProgram) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(AskFailed, match="cancelled"):
        HarnessTask(("t",), program(tmp_path, "exec sleep 1000")).right(start, TARGET, "tok", tmp_path, stop)
    assert ProcessRecords(tmp_path / "processes").all() == []


def test_the_digest_follows_the_content_of_an_own_task(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    digests = set()
    for text in ("task: a", "task: b"):
        file.write_text(text)
        digests.add(HarnessTask((str(file),), tmp_path / "lm_eval").digest)
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [("lm-eval:", "names no task"), ("lm-eval:no/such.yaml", "no file"), ("lm-eval:gsm8k", "not installed")],
)
def test_tasks_that_cannot_be_asked_are_refused(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(SettingError, match=message):
        harness_task(text)
