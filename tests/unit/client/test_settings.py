"""Settings of a submission: the keywords of `tuner.optimize`, and the contents of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.client.settings import LARGEST_FILE, with_contents
from tuner.errors import SettingError


def test_absent_values_are_left_out_and_tuples_are_lists() -> None:
    assert with_contents({"model": None, "slo": ("a<1",), "trials": 4}) == {"slo": ["a<1"], "trials": 4}


def test_files_are_sent_with_the_files_that_they_refer_to(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text("classes: {a: {prompts: {file: p.txt}, lengths: {file: p.txt}}}\n")
    (tmp_path / "p.txt").write_text("hello\n")
    (tmp_path / "own.yaml").write_text("include: [part.yaml]\n")
    (tmp_path / "part.yaml").write_text("include: last.yaml\n")
    (tmp_path / "last.yaml").write_text("description: d")
    (tmp_path / "q.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}')
    given = {"workload": tmp_path / "chat.yaml", "space": tmp_path / "own.yaml", "quality_task": tmp_path / "q.jsonl"}
    assert with_contents(given) == {
        "workload": ["classes: {a: {prompts: {file: p.txt}, lengths: {file: p.txt}}}\n"],
        "space": "include: [part.yaml]\n",
        "quality_task": '{"prompt": "1+1=", "answer": "2"}\n',
        "files": {"p.txt": "hello\n", "part.yaml": "include: last.yaml\n", "last.yaml": "description: d"},
    }


def test_names_and_contents_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"space": "cpu", "quality_task": "lm-eval:gsm8k"}
    assert with_contents(given) == given
    assert with_contents({"space": "description: d\n"}) == {"space": "description: d\n"}


@pytest.mark.parametrize(
    ("content", "rule"),
    [(None, "No such file"), (b"\xff", "not UTF-8"), (b"x" * (LARGEST_FILE + 1), "larger than")],
)
def test_a_file_that_cannot_be_sent_is_named(tmp_path: Path, content: bytes | None, rule: str) -> None:
    path = tmp_path / "w.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError, match=rule) as error:
        with_contents({"workload": [path]})
    assert (error.value.field, error.value.value) == ("workload", str(path))


def test_a_reference_into_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("a: {file: ../p.txt}\n")
    with pytest.raises(SettingError, match="files without folders"):
        with_contents({"workload": [str(tmp_path / "w.yaml")]})


@pytest.mark.parametrize("settings", [{"env": {"HF_TOKEN": "abc"}}, {"env": {"X": "abc"}, "secret": ["X"]}])
def test_the_value_of_a_secret_is_not_sent(settings: dict[str, object]) -> None:
    with pytest.raises(SettingError) as error:
        with_contents(settings)
    assert (error.value.field, "abc" in str(error.value)) == ("env", False)
    assert with_contents({"env": {"HF_TOKEN": "${HF_TOKEN}", "A": "b"}}) == {
        "env": {"HF_TOKEN": "${HF_TOKEN}", "A": "b"}
    }
