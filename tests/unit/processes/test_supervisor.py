"""A server's process: its start, its log, its end, and the watchdog of its worker."""

import errno
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from records.trials import FailureKind, Phase
from tests.fakes import install_fake_vllm
from tests.unit.processes.started import OWNER, ROOT, Starter, driver, identity_of, owner, python, until, watchdogs
from tuner.cancellation import STOP_S
from tuner.errors import TrialFailed
from tuner.processes.family import MARK, Identity, is_alive, read_process, send_signal
from tuner.processes.records import ProcessRecord, ProcessRecords
from tuner.processes.supervisor import (
    KEPT_BYTES,
    RUNNING_KEPT_BYTES,
    ServerProcess,
    free_middle,
    shorten_log,
    start_server,
)


def _serving(starter: Starter, **behaviour: object) -> ServerProcess:
    """Start a fake vLLM, and wait until it serves."""
    process = starter(str(install_fake_vllm(starter.folder / "bin", **behaviour)), "serve", "m", "--port", "0")
    until(lambda: "startup complete" in starter.output())
    return process


def test_the_record_is_on_disk_before_the_program_runs(starter: Starter) -> None:
    folder = starter.records.folder
    process = starter("/bin/sh", "-c", 'cat "$1"/*.json', "x", str(folder), port=23456)
    until(lambda: not process.alive())

    record = json.loads(starter.output())

    assert record["process"] == list(process.identity)
    assert record["port"] == 23456
    assert record["argv"] == ["/bin/sh", "-c", 'cat "$1"/*.json', "x", str(folder)]
    assert record["label"] == "study/1"
    assert record["owners"][0][0] == os.getpid()
    assert process.exit_code() == 0


def test_the_process_leads_its_own_group_in_our_session(starter: Starter) -> None:
    """Linux divides CPU time between sessions: a client in another session than the server would have to wait."""
    process = starter("/bin/sleep", "60")

    assert os.getpgid(process.pid) == process.pid
    assert os.getsid(process.pid) == os.getsid(0)


def test_arguments_reach_the_program_as_they_are(starter: Starter) -> None:
    words = ["a b", "$(touch pwned)", "`id`", "'", '"', "*", "", "-n", "\\", ";exit"]
    process = starter("/usr/bin/printf", "<%s>", *words)
    until(lambda: not process.alive())

    assert starter.output() == "".join(f"<{word}>" for word in words)
    assert not (starter.folder / "pwned").exists()


def test_the_environment_is_the_given_one(tmp_path: Path) -> None:
    records = ProcessRecords(tmp_path / "processes")
    log = tmp_path / "log"
    process = start_server(["/usr/bin/env"], {"ONE": "1", "TWO": "a b"}, log, tmp_path, records, None, "x")
    until(lambda: not process.alive())
    process.stop()

    names = dict(line.split("=", 1) for line in log.read_text().splitlines())
    added_by_shells = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert {name: value for name, value in names.items() if name not in {MARK, *added_by_shells}} == {
        "ONE": "1",
        "TWO": "a b",
    }
    assert len(names[MARK]) == 32


def test_standard_input_is_empty_and_the_log_is_appended_to(starter: Starter) -> None:
    starter.log.write_text("before\n")
    process = starter("/bin/sh", "-c", "cat; echo out; echo err >&2")
    until(lambda: not process.alive())

    assert starter.output() == "before\nout\nerr\n"


@pytest.mark.parametrize(("code", "expected"), [("exit 3", 3), ("kill -9 $$", -9)])
def test_exit_codes(starter: Starter, code: str, expected: int) -> None:
    process = starter("/bin/sh", "-c", code)
    until(lambda: not process.alive())

    assert process.exit_code() == expected
    assert read_process(process.pid) is not None, "its id must stay taken until stop"
    assert process.stop() == []
    assert process.exit_code() == expected


def test_a_running_process_has_no_exit_code(starter: Starter) -> None:
    process = starter("/bin/sleep", "60")

    assert process.alive()
    assert process.exit_code() is None


def test_a_program_that_is_not_there(starter: Starter) -> None:
    process = starter("/nowhere/vllm", "serve")
    until(lambda: not process.alive())

    assert process.exit_code() == 127
    assert "/nowhere/vllm" in starter.output()


def test_the_gate_exits_when_its_owner_dies_before_the_release(tmp_path: Path) -> None:
    owner = f"""
import os, signal
from pathlib import Path
from tuner.processes.supervisor import start_server
from tuner.processes.records import ProcessRecords

class Dying(ProcessRecords):
    def add(self, mark, process, port, argv, label):
        super().add(mark, process, port, argv, label)
        print(*process, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

here = Path({str(tmp_path)!r})
records = Dying(here / "processes")
start_server(["/bin/touch", str(here / "ran")], dict(os.environ), here / "log", here, records, None, "x")
"""
    done = subprocess.run([sys.executable, "-c", owner], cwd=ROOT, capture_output=True, text=True, timeout=240)
    gate = Identity(*map(int, done.stdout.split()))

    until(lambda: not is_alive(gate))
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "ran").exists()


class _Full(ProcessRecords):
    gate: Identity | None = None

    def add(
        self,
        mark: str,
        process: Identity,
        port: int | None,
        argv: tuple[str, ...],
        label: str,
        folder: Path | None = None,
    ) -> ProcessRecord:
        self.gate = process
        raise OSError(errno.ENOSPC, "No space left on device")


def test_without_a_record_nothing_runs(tmp_path: Path) -> None:
    records = _Full(tmp_path)

    with pytest.raises(TrialFailed) as caught:
        start_server(["/bin/touch", str(tmp_path / "ran")], {}, tmp_path / "log", tmp_path, records, None, "x")

    assert caught.value.failure.kind is FailureKind.DISK_FULL
    assert caught.value.failure.phase is Phase.LAUNCH
    assert records.gate is not None
    assert read_process(records.gate.pid) is None
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("behaviour", "patience_s", "least_s", "code"),
    [
        ({}, 60, 0.0, 0),
        ({"sigterm": "ignore", "child_sigterm": "ignore"}, 0.2, 0.2, -signal.SIGKILL),
        ({"child_sigterm": "ignore"}, 60, 0.0, 0),  # the child gets little time once the server is gone
        ({"sigterm": "slow", "sigterm_s": 0.4}, 30, 0.4, 0),
    ],
    ids=["at once", "both ignore SIGTERM", "the child ignores SIGTERM", "the server takes its time"],
)
def test_stop_ends_server_and_child_and_twice_is_fine(
    starter: Starter, behaviour: dict[str, object], patience_s: float, least_s: float, code: int
) -> None:
    process = _serving(starter, **behaviour)
    (child,) = process.descendants()

    begun = time.monotonic()
    assert process.stop(patience_s) == []

    assert least_s <= time.monotonic() - begun < 30
    assert not is_alive(child)
    assert not is_alive(process.identity)
    assert process.exit_code() == code
    assert starter.records.all() == []
    assert process.stop(60) == []


@pytest.mark.parametrize("later_s", [0.0, 0.3])
def test_a_cancellation_ends_the_patience_before_and_during_the_wait(starter: Starter, later_s: float) -> None:
    process = _serving(starter, sigterm="ignore", child_sigterm="ignore")
    cancelled = threading.Event()
    threading.Timer(later_s, cancelled.set).start()

    begun = time.monotonic()
    assert process.stop(600, cancelled) == []

    assert STOP_S <= time.monotonic() - begun < 60
    assert process.exit_code() == -signal.SIGKILL


def test_a_child_that_left_the_session_and_lost_its_parent_is_ended(starter: Starter) -> None:
    process = _serving(starter, child_setsid=True)
    (child,) = process.descendants()
    assert os.getsid(child.pid) == child.pid

    send_signal(process.identity, signal.SIGKILL)
    until(lambda: not process.alive())

    assert process.descendants() == {child}
    assert process.stop(5) == []
    assert not is_alive(child)


_ORPHAN_WITHOUT_A_MARK = """
import subprocess, time
subprocess.Popen(["/bin/sleep", "60"], env={"A": "b"}, start_new_session=True)
print("started", flush=True)
time.sleep(60)
"""


def test_a_recorded_child_is_ended_without_other_evidence(starter: Starter) -> None:
    process = starter(*python(_ORPHAN_WITHOUT_A_MARK))
    until(lambda: "started" in starter.output())
    process.record_family()
    (child,) = process.descendants()

    send_signal(process.identity, signal.SIGKILL)
    until(lambda: not process.alive())

    assert starter.records.all()[0].members == (child,)
    assert process.stop(5) == []
    assert not is_alive(child)


def test_a_zombie_is_not_alive(starter: Starter) -> None:
    code = "import os, time\npid = os.fork() or os._exit(0)\nprint(pid, flush=True)\ntime.sleep(60)"
    process = starter(*python(code))
    until(lambda: starter.output().endswith("\n"))
    zombie = int(starter.output())
    until(lambda: (seen := read_process(zombie)) is not None and not seen.alive)

    assert process.descendants() == set()
    assert process.stop(5) == []


_EXIT_OF_ONE_THREAD = {"x86_64": 60, "aarch64": 93}


def test_a_process_whose_first_thread_is_gone_still_lives(starter: Starter) -> None:
    number = _EXIT_OF_ONE_THREAD[platform.machine()]
    process = starter(
        *python(
            "import ctypes, threading, time\n"
            "threading.Thread(target=time.sleep, args=(60,)).start()\n"
            f"ctypes.CDLL(None).syscall({number}, 0)"
        )
    )
    until(lambda: b") Z " in Path(f"/proc/{process.pid}/stat").read_bytes())

    assert process.alive()
    assert process.stop(0.1) == []
    assert read_process(process.pid) is None


def test_a_signal_does_not_reach_a_recycled_id(starter: Starter) -> None:
    process = starter("/bin/sleep", "60")
    earlier = Identity(process.pid, process.identity.started - 1)

    assert send_signal(earlier, signal.SIGKILL) is False
    assert process.alive()


END_S = 10.0
"""How long a family may take to end after its owner."""

MEMORY_MIB = 20
"""A watchdog has 14.5 MiB on Python 3.11, and 16 on 3.14."""

_CLIENT_OWNER = """
import json, os, sys, time
from pathlib import Path
from tuner.engines.server.traffic import PlainJob
from tuner.processes.records import ProcessRecords

here = Path(sys.argv[1])
records = ProcessRecords(here / "processes")
job = PlainJob(["/bin/sleep", "600"], dict(os.environ), here / "log", here, records)
print(json.dumps([record.process for record in records.all()]), flush=True)
time.sleep(600)
"""


def ignores(watchdog: Identity) -> bool:
    """Return whether the watchdog ignores the signals that end a terminal's or a service's processes: it has begun."""
    mask = sum(1 << number - 1 for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    status = Path(f"/proc/{watchdog.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("SigIgn:")]
    return int(line.split()[1], 16) & mask == mask


@pytest.mark.parametrize("killed", ["worker", "driver"])
def test_a_family_ends_with_a_killed_owner(tmp_path: Path, killed: str) -> None:
    program = str(install_fake_vllm(tmp_path / "bin", sigterm="ignore", child_setsid=True, child_sigterm="ignore"))
    with driver() as above, owner(OWNER, tmp_path, program, json.dumps(identity_of(above.pid))) as (worker, started):
        assert len(started) == 2
        assert all(map(is_alive, started))
        begun = time.monotonic()
        (worker if killed == "worker" else above).kill()

        until(lambda: not any(map(is_alive, started)))

        assert time.monotonic() - begun < END_S
        until(lambda: ProcessRecords(tmp_path / "processes").all() == [])
        worker.kill()
        worker.wait()
        until(lambda: not watchdogs(tmp_path / "processes"))


def test_a_benchmark_client_ends_with_its_killed_worker(tmp_path: Path) -> None:
    with owner(_CLIENT_OWNER, tmp_path) as (worker, started):
        assert len(started) == 1
        worker.kill()
        until(lambda: not any(map(is_alive, started)), END_S)


def test_a_killed_watchdog_is_started_again_with_the_next_process(starter: Starter) -> None:
    starter("/bin/sleep", "60")
    until(lambda: len(watchdogs(starter.records.folder)) == 1)
    (first,) = watchdogs(starter.records.folder)
    send_signal(first, signal.SIGKILL)
    until(lambda: not is_alive(first))

    starter("/bin/sleep", "60")

    until(lambda: len(watchdogs(starter.records.folder)) == 1)
    starter("/bin/sleep", "60")
    assert len(watchdogs(starter.records.folder)) == 1


def test_signals_of_terminals_and_services_do_not_end_a_watchdog(starter: Starter) -> None:
    starter("/bin/sleep", "60")
    until(lambda: len(watchdogs(starter.records.folder)) == 1)
    (watchdog,) = watchdogs(starter.records.folder)
    until(lambda: ignores(watchdog))
    assert os.getsid(watchdog.pid) != os.getsid(0)
    assert psutil.Process(watchdog.pid).ppid() != os.getpid()


def test_a_watchdog_is_small_and_ends_with_its_records(tmp_path: Path) -> None:
    def run_and_stop() -> Identity:
        starter = Starter(tmp_path)
        starter("/bin/sleep", "60")
        until(lambda: len(watchdogs(tmp_path / "processes")) == 1)
        (watchdog,) = watchdogs(tmp_path / "processes")
        until(lambda: ignores(watchdog))
        assert psutil.Process(watchdog.pid).memory_info().rss < MEMORY_MIB * 2**20
        starter.close()
        return watchdog

    watchdog = run_and_stop()

    until(lambda: not is_alive(watchdog))


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
