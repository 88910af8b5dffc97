"""What `tuner quality` and an SLO on quality refuse: one line, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import run_here

OPTIMIZE = ("optimize", "--engine", "simulated", "--trials", "2", "--slo", "quality>=0.99")
QUESTION = '{"prompt": "2+2=", "answer": "4"}'


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        ('{"prompt": "2+2="}', ("line 1 has no answer", '{"prompt": "2+2=", "answer": "4"}')),
        (f"{QUESTION}\nno JSON", ("line 2",)),
        ("", ("'questions.jsonl'",)),
    ],
)
@pytest.mark.parametrize("command", [("quality",), OPTIMIZE])
def test_questions_that_cannot_be_asked_are_refused(
    tmp_path: Path, command: tuple[str, ...], lines: str, parts: tuple[str, ...]
) -> None:
    (tmp_path / "questions.jsonl").write_text(lines)
    _refused(tmp_path, (*command, "--quality-task", "questions.jsonl"), "--quality-task", *parts)


def test_an_slo_without_questions_is_refused(tmp_path: Path) -> None:
    _refused(tmp_path, OPTIMIZE, "quality needs questions", "--quality-task FILE")


def test_questions_that_no_slo_asks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text(QUESTION)
    command = (*OPTIMIZE[:-2], "--quality-task", "questions.jsonl")
    _refused(tmp_path, command, "--quality-task 'questions.jsonl'", "add --slo 'quality>=0.99'")


def test_an_slo_where_no_reference_can_be_served_is_refused(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text(QUESTION)
    _refused(tmp_path, (*OPTIMIZE, "--quality-task", "questions.jsonl"), "no reference can be served")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--trial", "3"), ("--trial", "needs a study", "--study NAME")),
        (("--study", "s", "--model", "m"), ("--study", "are those of the study", "--model")),
        (("--study", "s", "--secret", "X"), ("--study", "are those of the study", "--secret")),
        (("--study", "s", "--", "--seed", "3"), ("--study", "flags after --")),
        (("--study", "s"), ("--storage",)),
    ],
)
def test_a_candidate_is_a_trial_or_a_model(tmp_path: Path, words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    _refused(tmp_path, ("quality", *words), *parts)


def _refused(folder: Path, command: tuple[str, ...], *parts: str) -> None:
    before = sorted(folder.iterdir())
    printed = run_here(folder, *command)
    assert (printed.code, printed.out, len(printed.err.splitlines())) == (2, "", 1), printed.err
    assert [part for part in parts if part not in printed.err] == [], printed.err
    assert sorted(folder.iterdir()) == before
