"""A file's content is replaced in one step."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tuner.files import write_atomically


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
