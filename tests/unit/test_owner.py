"""Whose file is at a path: exported files replace neither another study's file nor one of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboards.report.page import Page, render
from tuner.client.output import write_export, write_report
from tuner.errors import SettingError
from tuner.owner import free_path, other_file, refuse_other_file
from tuner.use_cases.bundle import FIRST, OF_STUDY, archive

OF_A = "#!/usr/bin/env bash\n# Starts the vLLM server of a tuner study.\n#\n# study     a, trial 3\n# verdict   x\n"


def report(study: str) -> str:
    return render(Page(title=study, verdict="", simulated=True))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, None),
        (b"", None),
        (OF_A.encode(), None),
        (OF_A.replace(" a,", " a, trial 3,").encode(), "a file of study 'a, trial 3'"),
        (OF_A.replace(" a,", " b,").encode(), "a file of study 'b'"),
        (b"#!/bin/sh\nexec my-server # study a, trial 3\n", "a file that the tuner did not write"),
        (b"\xff\xfe\x00", "a file that the tuner did not write"),
        (b"<!doctype html><title>mine</title>", "a file that the tuner did not write"),
        (report("a").encode(), None),
        (report("b<&").encode(), "a file of study 'b<&'"),
        (archive({FIRST: OF_STUDY.format(kind="Measured", name="a")}), None),
        (archive({FIRST: OF_STUDY.format(kind="Measured", name="b")}), "a file of study 'b'"),
        (
            archive({"a.txt": "figures of the study a, written by `tuner report`"}),
            "a file that the tuner did not write",
        ),
    ],
)
def test_only_the_studys_own_file_may_be_replaced(tmp_path: Path, content: bytes | None, expected: str | None) -> None:
    path = tmp_path / "best_serve.sh"
    if content is not None:
        path.write_bytes(content)
    assert other_file(path, "a") == expected


def test_a_device_is_written_through() -> None:
    assert other_file(Path("/dev/null"), "a") is None


def test_the_script_goes_beside_files_that_stay(tmp_path: Path) -> None:
    path = tmp_path / "best_serve.sh"
    assert free_path(path, "a") == path
    path.write_text("mine")
    assert free_path(path, "a") == tmp_path / "best_serve-a.sh"
    (tmp_path / "best_serve-a.sh").write_text("mine, too")
    assert free_path(path, "a") == tmp_path / "best_serve-a-2.sh"
    (tmp_path / "best_serve-a.sh").write_text(OF_A)
    assert free_path(path, "a") == tmp_path / "best_serve-a.sh"


def test_a_chosen_file_is_refused_with_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.sh"
    path.write_text("mine")
    with pytest.raises(SettingError, match="there is a file that the tuner did not write, which stays") as caught:
        refuse_other_file(path, "a")
    assert caught.value.exit_code == 2
    assert path.read_text() == "mine"


def test_what_a_server_answers_replaces_no_other_file(tmp_path: Path) -> None:
    script, values = tmp_path / "a.sh", tmp_path / "values.yaml"
    write_export({"a.sh": OF_A, "values.yaml": OF_A}, script, "script", "a")
    write_report(report("a, b").encode(), tmp_path / "r.html", "a, b")
    write_report(report("a, b").encode(), tmp_path / "r.html", "a, b")
    values.write_text("mine")
    script.write_text(OF_A + "old")
    with pytest.raises(SettingError, match=r"values\.yaml': there is a file that the tuner did not write"):
        write_export({"a.sh": OF_A, "values.yaml": OF_A}, script, "script", "a")
    with pytest.raises(SettingError, match="there is a file of study 'a, b', which stays"):
        write_report(report("a").encode(), tmp_path / "r.html", "a")
    assert (script.read_text(), values.read_text()) == (OF_A + "old", "mine")
