"""The files of a trial that ran on a node without the study's folder."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

import pytest

from tuner.executors import ray_worker


def test_files_and_folders_are_the_same_afterwards(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "plots").mkdir(parents=True)
    (there / "server.log").write_text("ready\n")
    (there / "plots" / "a.csv").write_bytes(b"\x00\xff")
    ray_worker.mark_folder(here)
    assert ray_worker.is_shared(here)
    (there / "link").symlink_to(there / "server.log")
    ray_worker.unpack_files(ray_worker.pack_files(there, "node"), here)
    ray_worker.unmark_folder(here)
    assert not (here / "link").exists()
    assert (here / "server.log").read_text() == "ready\n"
    assert (here / "plots" / "a.csv").read_bytes() == b"\x00\xff"
    assert not ray_worker.is_shared(here)


def test_files_beyond_the_limit_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    (there / "small").write_bytes(b"1" * 10)
    (there / "large").write_bytes(b"2" * 91)
    monkeypatch.setattr(ray_worker, "MAX_BYTES", 100)
    ray_worker.unpack_files(ray_worker.pack_files(there, "node"), here)
    assert sorted(path.name for path in here.iterdir()) == ["left_on_node.txt", "small"]
    assert (here / "left_on_node.txt").read_text() == "large: 91 bytes, removed from node\n"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../outside", tarfile.REGTYPE),
        ("plots/../../outside", tarfile.REGTYPE),
        ("/outside", tarfile.REGTYPE),
        ("away/outside", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("hard", tarfile.LNKTYPE),
        ("device", tarfile.CHRTYPE),
    ],
)
def test_what_is_no_file_of_the_folder_is_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "away").symlink_to(tmp_path)
    entry, buffer = tarfile.TarInfo(name), io.BytesIO()
    entry.type, entry.linkname = kind, "/etc/passwd"
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(entry)
    with pytest.raises(tarfile.TarError, match=re.escape(f"{name!r} is no file of this folder")):
        ray_worker.unpack_files(buffer.getvalue(), tmp_path / "here")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["away", "here"]


def test_files_that_cannot_be_written_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    ray_worker.bring_back(ray_worker.pack_files(tmp_path, "node"), tmp_path / "file" / "below")
    ray_worker.bring_back(b"no archive", tmp_path)
    ray_worker.bring_back(None, tmp_path)
    assert caplog.text.count("the files of a trial cannot be written to") == 2
