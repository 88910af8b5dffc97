from __future__ import annotations

import errno
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from records.trials import FailureKind, Phase
from tests.fakes import install_fake_vllm
from tests.unit.processes.started import ROOT, Starter, python, until
from tuner.errors import TrialFailed
from tuner.processes.family import MARK, Identity, is_alive, read_process, send_signal
from tuner.processes.records import ProcessRecord, ProcessRecords
from tuner.processes.supervisor import start_server


def _fake(starter: Starter, **behaviour: object) -> str:
    return str(install_fake_vllm(starter.folder / "bin", **behaviour))


def _serving(starter: Starter) -> bool:
    return "startup complete" in starter.output()


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


def test_stop_ends_server_and_child_at_once_and_twice_is_fine(starter: Starter) -> None:
    process = starter(_fake(starter), "serve", "m", "--port", "0")
    until(lambda: _serving(starter))
    (child,) = process.descendants()

    begun = time.monotonic()
    assert process.stop(60) == []

    assert time.monotonic() - begun < 30
    assert not is_alive(child)
    assert not is_alive(process.identity)
    assert process.exit_code() == 0
    assert starter.records.all() == []
    assert process.stop(60) == []


def test_stop_kills_a_process_that_ignores_sigterm(starter: Starter) -> None:
    process = starter(_fake(starter, sigterm="ignore", child_sigterm="ignore"), "serve", "m", "--port", "0")
    until(lambda: _serving(starter))
    (child,) = process.descendants()

    begun = time.monotonic()
    assert process.stop(0.2) == []

    assert 0.2 <= time.monotonic() - begun < 30
    assert process.exit_code() == -signal.SIGKILL
    assert not is_alive(child)


def test_a_child_that_ignores_sigterm_gets_little_time_once_the_server_is_gone(starter: Starter) -> None:
    process = starter(_fake(starter, child_sigterm="ignore"), "serve", "m", "--port", "0")
    until(lambda: _serving(starter))
    (child,) = process.descendants()

    begun = time.monotonic()
    assert process.stop(60) == []

    assert time.monotonic() - begun < 30
    assert process.exit_code() == 0
    assert not is_alive(child)


def test_the_server_has_its_time_to_stop(starter: Starter) -> None:
    process = starter(_fake(starter, sigterm="slow", sigterm_s=0.4), "serve", "m", "--port", "0")
    until(lambda: _serving(starter))

    assert process.stop(30) == []
    assert process.exit_code() == 0


def test_a_child_that_left_the_session_and_lost_its_parent_is_ended(starter: Starter) -> None:
    process = starter(_fake(starter, child_setsid=True), "serve", "m", "--port", "0")
    until(lambda: _serving(starter))
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
