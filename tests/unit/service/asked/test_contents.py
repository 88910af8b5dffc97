"""Contents instead of files, and what they may refer to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tuner.errors import SettingError, UserError
from tuner.service.asked.contents import check_contents, files_of, read_only, with_files
from tuner.service.asked.settings import read_settings


def test_contents_become_files_and_names_stay_names(tmp_path: Path) -> None:
    given = {"workload": ["rate: 1\n", "rate: 2\n"], "space": "small", "quality_task": '{"prompt": "a"}\n'}
    keywords = with_files(read_settings(given, "s"), {}, tmp_path / "contents")
    assert [Path(path).read_text() for path in keywords.workload] == ["rate: 1\n", "rate: 2\n"]
    assert keywords.space == "small"
    assert keywords.quality_task is not None
    assert Path(keywords.quality_task).read_text() == '{"prompt": "a"}\n'
    assert {path.parent for path in map(Path, keywords.workload)} == {tmp_path / "contents"}


def test_a_workload_that_looks_like_a_path_is_a_content(tmp_path: Path) -> None:
    keywords = with_files(read_settings({"workload": ["/etc/passwd"]}, "s"), {}, tmp_path)
    assert Path(keywords.workload[0]).read_text() == "/etc/passwd"


OWN = "arrivals: {process: poisson, rate: 1}\nclasses: {a: {text: {file: prompts.jsonl}}}\n"


def check(**given: Any) -> None:
    check_contents(read_settings(given, "s"), files_of(given))


def test_a_traffic_file_may_refer_to_the_submissions_own_files(tmp_path: Path) -> None:
    given = {"workload": [OWN], "files": {"prompts.jsonl": '{"prompt": "a"}\n'}}
    check(**given)
    keywords = with_files(read_settings(given, "s"), files_of(given), tmp_path)
    assert (Path(keywords.workload[0]).parent / "prompts.jsonl").read_text() == '{"prompt": "a"}\n'


@pytest.mark.parametrize("name", ["/etc/passwd", "../driver.log", "other.jsonl", "prompts.jsonl/../x"])
def test_no_content_reads_a_file_of_the_server(name: str) -> None:
    files = {"prompts.jsonl": "{}\n"}
    with pytest.raises(SettingError, match="not one of the submission's files"):
        check(workload=[OWN.replace("prompts.jsonl", f"'{name}'")], files=files)
    with pytest.raises(SettingError, match="not one of the submission's files"):
        check(space=f"include: ['{name}']\nparameters: {{}}\n")
    with pytest.raises(SettingError, match="not one of the submission's files"):
        check(files={"a.yaml": f"x: [[{{file: '{name}'}}]]\n"})


def test_an_included_file_includes_none_of_the_servers_whatever_its_name() -> None:
    files = {"a.txt": "include: [b.data]\n", "b.data": "include: [/etc/passwd]\n"}
    with pytest.raises(SettingError, match="'/etc/passwd' is not one of the submission's files"):
        check(space="include: [a.txt]\nparameters: {}\n", files=files)


def test_files_that_include_each_other_end() -> None:
    check(space="include: [a.txt]\nparameters: {}\n", files={"a.txt": "include: [a.txt]\n"})


def test_errors_in_contents_do_not_name_the_folder_of_the_server() -> None:
    keywords = read_settings({"space": "parameters: 7\n"}, "s")
    with pytest.raises(UserError) as caught, read_only(keywords, {}) as own:
        raise UserError(f"{own.space}:1: parameters: not valid")
    assert str(caught.value) == "space.yaml:1: parameters: not valid"
    with pytest.raises(SettingError) as setting, read_only(keywords, {}) as own:
        raise SettingError("space", own.space, f"{own.space} is not valid", f"see {own.space}")
    assert str(setting.value) == "space='space.yaml': space.yaml is not valid; see space.yaml"


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".hidden", "a b", "x" * 101, "a\nb", "/a"])
def test_a_file_has_a_plain_name(name: str) -> None:
    with pytest.raises(SettingError) as caught:
        files_of({"files": {name: "x"}})
    assert caught.value.field == "files"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("files", [[], "x", {"a": 1}, {"a": "x" * 1_000_001}, {str(i): "" for i in range(21)}])
def test_files_are_a_few_texts(files: Any) -> None:
    with pytest.raises(SettingError):
        files_of({"files": files})


def test_a_content_that_is_no_yaml_is_named() -> None:
    with pytest.raises(SettingError) as caught:
        check(workload=["a: [1"])
    assert caught.value.field == "workload"
