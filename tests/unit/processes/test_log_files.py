"""Logs that are kept small."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.processes.supervisor import KEPT_BYTES, RUNNING_KEPT_BYTES, free_middle, shorten_log


def test_a_short_log_stays_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"one\ntwo")
    before = log.stat().st_ino
    shorten_log(log, bytes)
    assert (log.read_bytes(), log.stat().st_ino) == (b"one\ntwo", before)


def test_a_long_log_keeps_whole_lines_at_both_ends(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    lines = [f"{number:>99}\n".encode() for number in range(50_000)]
    log.write_bytes(b"".join(lines))
    log.chmod(0o600)

    shorten_log(log, bytes)

    head, note, tail = log.read_bytes().partition(b"[tuner: 2,903,000 bytes of this log were cut here]\n")
    assert note
    assert head == b"".join(lines[: len(head) // 100])
    assert tail == b"".join(lines[-len(tail) // 100 :])
    assert KEPT_BYTES - 100 < len(head) <= KEPT_BYTES
    assert KEPT_BYTES - 100 <= len(tail) < KEPT_BYTES
    assert log.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [log]


@pytest.mark.parametrize("target", ["/dev/full", "missing"])
def test_a_log_that_is_a_link_or_missing_is_passed_over(tmp_path: Path, target: str) -> None:
    log = tmp_path / "server.log"
    log.symlink_to(target)
    shorten_log(log, bytes)
    free_middle(tmp_path / "none.log")
    assert log.is_symlink()


def test_a_growing_log_needs_little_space(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    block = bytes(range(256)) * 4096
    count = 6 * RUNNING_KEPT_BYTES // len(block)
    with log.open("ab", buffering=0) as writer:
        for _ in range(count):
            writer.write(block)
        free_middle(log)
        if log.stat().st_blocks * 512 > 5 * RUNNING_KEPT_BYTES:
            pytest.skip("this file system cannot free the middle of a file")
        writer.write(b"the end")

    with log.open("rb") as file:
        assert file.read(len(block)) == block
        file.seek(-len(block) - 7, 2)
        assert file.read() == block + b"the end"
    assert log.stat().st_size == count * len(block) + 7
    assert log.stat().st_blocks * 512 <= 3 * RUNNING_KEPT_BYTES
