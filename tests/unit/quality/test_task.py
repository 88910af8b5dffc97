"""Questions: the file, its mistakes, and the grading of answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.errors import SettingError
from tuner.quality.examiner import built_in_texts, texts_of
from tuner.quality.task import Question, read_task, right_answers


def written(folder: Path, text: str) -> str:
    file = folder / "task.jsonl"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_a_file_is_read(tmp_path: Path) -> None:
    lines = '{"prompt": "2+2=", "answer": 4}\n\n{"prompt": "a", "answer": "b", "regex": "x(.)", "max_tokens": 7}\n'
    task = read_task(written(tmp_path, lines))
    assert task.questions == (Question("2+2=", "4"), Question("a", "b", "x(.)", 7))
    assert [question.tokens for question in task.questions] == [9, 7]
    assert texts_of(task) == ("2+2=4", "ab")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file has no question"),
        ('{"prompt": "2+2="}', "line 1 has no answer"),
        ('{"answer": "4"}', "line 1 has no prompt"),
        ('{"prompt": "2+2=", "answer": "4"}\n[]', "line 2 is not a JSON object"),
        ("no", "line 1 is not JSON"),
        ('{"prompt": "a", "answer": "4", "regex": "("}', "line 1 has an invalid regex"),
        ('{"prompt": "a", "answer": "4", "regex": "a(?R)?a"}', "line 1 has an invalid regex"),
        (f'{{"prompt": "a", "answer": "4", "regex": "{"a" * 1001}"}}', "line 1 has a regex of more than 1,000"),
        ('{"prompt": "a", "answer": "4", "max_tokens": 0}', "line 1 has max_tokens 0"),
    ],
)
def test_a_mistake_names_its_line_and_the_remedy(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_task(written(tmp_path, text))
    assert reason in str(caught.value)
    assert 'write lines such as {"prompt": "2+2=", "answer": "4"}' in str(caught.value)


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="not a file"):
        read_task(str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("question", "text", "right"),
    [
        (Question("", "4"), " 4\n5+5=10", True),
        (Question("", "4"), "44", False),
        (Question("", "a\nb"), "a\nb ", True),
        (Question("", "12", r"#### (\d+)"), "3 * 4\n#### 11\n#### 12\n", True),
        (Question("", "12", r"\d+"), "7, so 12", True),
        (Question("", "12", r"#### (\d+)"), "12", False),
    ],
)
def test_grading(question: Question, text: str, right: bool) -> None:
    assert question.right(text) is right


def test_the_built_in_texts_are_short() -> None:
    texts = built_in_texts()
    assert len(texts) == 12
    assert all(50 <= len(text) <= 400 for text in texts)


@pytest.mark.parametrize("regex", [r"(a+)+b", r"(a+)\1+b"])
def test_a_regex_that_needs_too_long_is_the_users_mistake(regex: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.quality.task.REGEX_S", 0.05)
    with pytest.raises(SettingError) as caught:
        right_answers([Question("", "4", regex)], ["a" * 10_000])
    assert "needs more than 0.05 s for one answer; write it without repeats within repeats" in str(caught.value)
