"""Files, scratch folders, and the owner of what tests start."""

import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dashboards.report.page import Page, render
from tuner import files, scratch
from tuner.client.files import write_export, write_report
from tuner.errors import SettingError
from tuner.files import write_atomically, write_output
from tuner.owner import free_path, other_file, refuse_other_file
from tuner.use_cases.bundle import FIRST, OF_STUDY, archive


def test_the_content_is_replaced_and_nothing_else_remains(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("old")
    write_atomically(file, "new: é\r\n")
    assert file.read_bytes() == "new: é\r\n".encode()
    assert list(tmp_path.iterdir()) == [file]


def test_a_failed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.json"
    file.write_text("old")

    def fail(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_readers_see_the_new_content_only_after_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    file.write_text("old")
    seen: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(file.read_text()))
    write_atomically(file, "new")
    assert seen == ["old", "new"]  # the file before it is renamed, the folder afterwards


def test_the_mode_follows_the_umask_unless_it_is_given(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "plain", "x")
        write_atomically(tmp_path / "script", "x", mode=0o755)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "plain").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "script").stat().st_mode) == 0o755


def test_characters_that_utf_8_cannot_encode_are_written_if_the_caller_allows_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "x\udcff", errors="surrogateescape")
    assert (tmp_path / "a").read_bytes() == b"x\xff"
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "a", "x\udcff")


def test_an_output_that_is_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    file = tmp_path / "a.sh"
    for text in ("old, and longer", "new"):
        write_output(file, text, mode=0o755)
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", 0o755)
    assert list(tmp_path.iterdir()) == [file]


def test_an_output_that_is_a_link_keeps_the_link(tmp_path: Path) -> None:
    file, link, dangling = tmp_path / "a.sh", tmp_path / "link", tmp_path / "dangling"
    file.write_text("old")
    link.symlink_to("a.sh")
    dangling.symlink_to("b.sh")
    write_output(link, "new")
    write_output(dangling, "new")
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert (file.read_text(), (tmp_path / "b.sh").read_text()) == ("new", "new")


def test_an_output_that_is_a_fifo_is_written_through(tmp_path: Path) -> None:
    fifo, copy = tmp_path / "fifo", tmp_path / "copy"
    os.mkfifo(fifo)
    with copy.open("wb") as file, subprocess.Popen(["cat", fifo], stdout=file) as reader:
        write_output(fifo, "x" * 200_000, mode=0o755)
        reader.wait(timeout=60)
    assert copy.read_text() == "x" * 200_000
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert sorted(tmp_path.iterdir()) == [copy, fifo]


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_an_output_that_is_a_device_is_written_through(device: str, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(device)
    before = os.stat(device)
    if device == "/dev/full":
        with pytest.raises(OSError, match="No space left"):
            write_output(link, "x", mode=0o755)
    else:
        write_output(link, "x", mode=0o755)
    assert link.is_symlink()
    assert (os.stat(device).st_mode, os.stat(device).st_rdev) == (before.st_mode, before.st_rdev)
    assert list(tmp_path.iterdir()) == [link]


def test_an_output_that_is_a_folder_or_a_socket_is_an_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name in ("", "socket"):
            with pytest.raises(OSError):  # noqa: PT011  each has its own number
                write_output(tmp_path / name, "x")
    assert stat.S_ISSOCK((tmp_path / "socket").stat().st_mode)


def test_files_of_a_study_are_their_users_and_outputs_have_the_users_umask(tmp_path: Path) -> None:
    program = """
import os, subprocess, sys
from pathlib import Path
from tuner.files import be_private, given_umask, write_output

os.umask(0o027)
be_private()
be_private()
Path("private").write_text("x")
Path("folder").mkdir()
write_output(Path("output"), "x")
write_output(Path("script"), "x", mode=0o700)
subprocess.run(["/usr/bin/touch", "servers"], umask=given_umask(), check=True)
child = "from tuner.files import be_private; be_private(); open('childs', 'w')"
subprocess.run([sys.executable, "-c", child], check=True)
"""
    own = {name: value for name, value in os.environ.items() if name != files.UMASK}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=own, check=True, timeout=60)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {
        **{"private": 0o600, "childs": 0o600, "folder": 0o700, "script": 0o700},
        **{"output": 0o640, "servers": 0o640},
    }


@pytest.mark.parametrize(("given", "umask"), [(None, -1), ("22", 0o22), ("nonsense", -1)])
def test_the_umask_that_the_user_gave(given: str | None, umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(files.UMASK, raising=False)
    if given is not None:
        monkeypatch.setenv(files.UMASK, given)
    assert files.given_umask() == umask


def test_only_folders_of_ended_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    dead = tmp_path / f"tuner-test-{child.stdout.strip()}-abc"
    other_kind = tmp_path / f"tuner-else-{child.stdout.strip()}-abc"
    of_another_program = tmp_path / f"{child.stdout.strip()}-tuner-test-abc"
    for folder in (dead / "in", other_kind, of_another_program):
        folder.mkdir(parents=True)
    mine = scratch.new_folder("test")
    (mine / "file").write_text("x")
    again = scratch.new_folder("test")
    assert sorted(tmp_path.iterdir()) == sorted([of_another_program, mine, again])
    scratch.empty(mine)
    assert list(mine.iterdir()) == []
    scratch.remove(mine)
    assert not mine.exists()


def test_a_zombie_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", ""])
    folder = tmp_path / f"tuner-test-{child.pid}-abc"
    folder.mkdir()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    scratch.remove_stale()
    assert not folder.exists()
    child.wait()


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
            archive({"a.txt": "figures of the study a, written by `tuner study report`"}),
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
