"""The real helper script, with a made-up vLLM: commands, answers, and ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.engines.vllm.conftest import MadeVllm
from tuner.engines.server.traffic import PlainJob
from tuner.engines.vllm.resident_client import HELPER, ResidentHelper
from tuner.processes.family import read_process
from tuner.processes.records import ProcessRecords

SOON = 200.0  # a busy machine takes ten times as long as a quiet one


@pytest.fixture
def resident(made_vllm: MadeVllm, tmp_path: Path) -> Iterator[ResidentHelper]:
    helper = ResidentHelper(Path(sys.executable), tmp_path / "helper.log", made_vllm.environment)
    assert helper.ready(SOON), (tmp_path / "helper.log").read_text()
    yield helper
    helper.close()


def gone(pid: int) -> bool:
    seen = read_process(pid)
    return seen is None or not seen.alive


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SOON
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_the_ready_message_has_version_and_device_state(resident: ResidentHelper) -> None:
    assert resident.greeting["version"] == "1.2.3"
    assert resident.greeting["device_touched"] is False


@pytest.mark.parametrize(
    ("argv", "code", "printed"),
    [
        (["exit", "0"], 0, "argv ['exit', '0']"),
        (["exit", "3"], 3, "argv ['exit', '3']"),
        (["say"], 1, "the last word"),
        (["raise"], 1, "RuntimeError: made to fail"),
    ],
)
def test_a_command_runs_as_the_program_would(
    resident: ResidentHelper, tmp_path: Path, argv: list[str], code: int, printed: str
) -> None:
    log = tmp_path / "command.log"
    job = resident.run("cli", log, argv=argv)
    assert job.wait(SOON)
    assert job.exit_code == code
    assert printed in log.read_text()


def test_a_command_gets_the_requested_environment_and_folder(resident: ResidentHelper, tmp_path: Path) -> None:
    log = tmp_path / "command.log"
    folder = tmp_path / "there"
    folder.mkdir()
    job = resident.run("cli", log, argv=["environment"], environment={"HELLO": "you"}, cwd=str(folder))
    assert job.wait(SOON)
    assert f"HELLO you None {folder}" in log.read_text()


def test_cancel_kills_the_command_and_its_children(resident: ResidentHelper, tmp_path: Path) -> None:
    note = tmp_path / "note"
    job = resident.run("cli", tmp_path / "command.log", argv=["fork-and-sleep", str(note)])
    assert eventually(lambda: (tmp_path / "note.done").exists())
    child = int((tmp_path / "note.done").read_text())
    assert not gone(child)
    job.cancel()
    assert job.exit_code == -signal.SIGKILL
    assert eventually(lambda: gone(child))


def test_commands_run_side_by_side(resident: ResidentHelper, tmp_path: Path) -> None:
    slow = resident.run("cli", tmp_path / "slow.log", argv=["sleep", "600"])
    quick = resident.run("cli", tmp_path / "quick.log", argv=["exit", "5"])
    assert quick.wait(SOON)
    assert quick.exit_code == 5
    assert slow.exit_code is None
    slow.cancel()


def test_a_command_leads_its_own_group_in_our_session(resident: ResidentHelper, tmp_path: Path) -> None:
    """Linux divides CPU time between sessions: a client in another session than the server would have to wait."""
    job = resident.run("cli", tmp_path / "command.log", argv=["sleep", "600"])
    assert eventually(lambda: job.pid is not None and os.getpgid(job.pid) == job.pid)
    assert job.pid is not None
    assert os.getsid(job.pid) == os.getsid(0)
    job.cancel()


def test_a_killed_helper_ends_its_jobs_and_its_children(resident: ResidentHelper, tmp_path: Path) -> None:
    job = resident.run("cli", tmp_path / "command.log", argv=["sleep", "600"])
    assert eventually(lambda: job.pid is not None)
    assert job.pid is not None
    os.kill(resident.pid, signal.SIGKILL)
    assert job.wait(SOON)
    assert job.exit_code is None
    assert eventually(lambda: gone(job.pid or 0))
    later = resident.run("cli", tmp_path / "command.log", argv=["exit", "0"])
    assert later.wait(0)
    assert later.exit_code is None
    assert not resident.ready(0)


def test_close_ends_running_commands(made_vllm: MadeVllm, tmp_path: Path) -> None:
    helper = ResidentHelper(Path(sys.executable), tmp_path / "helper.log", made_vllm.environment)
    assert helper.ready(SOON)
    job = helper.run("cli", tmp_path / "command.log", argv=["sleep", "600"])
    assert eventually(lambda: job.pid is not None)
    helper.close()
    assert job.wait(SOON)
    assert job.pid is not None
    assert eventually(lambda: gone(job.pid or 0))
    assert gone(helper.pid)
    helper.close()


def test_a_helper_that_still_imports_ends_with_its_input(made_vllm: MadeVllm, tmp_path: Path) -> None:
    package = made_vllm.folder / "vllm" / "__init__.py"
    package.write_text(f"open({str(tmp_path / 'importing')!r}, 'w').close()\nimport time\ntime.sleep(600)\n")
    read, write = os.pipe()
    words: list[str | Path] = [sys.executable, HELPER, tmp_path / "helper.log"]
    with subprocess.Popen(words, stdin=read, stdout=subprocess.DEVNULL, env=made_vllm.environment) as helper:
        os.close(read)
        assert eventually((tmp_path / "importing").exists)
        os.close(write)
        try:
            assert helper.wait(SOON) == 1
        finally:
            helper.kill()


def test_a_python_without_vllm_fails_at_once(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    helper = ResidentHelper(Path(sys.executable), tmp_path / "helper.log", environment)
    assert not helper.ready(SOON)
    assert "No module named 'vllm'" in (tmp_path / "helper.log").read_text()
    helper.close()


def test_the_parser_is_read(resident: ResidentHelper, tmp_path: Path) -> None:
    out = tmp_path / "info.json"
    job = resident.run("info", tmp_path / "info.log", out=str(out))
    assert job.wait(SOON)
    dump = json.loads(out.read_text())
    by_name = {entry["names"][0]: entry for entry in dump["flags"] if entry["names"]}
    assert by_name["--dtype"]["choices"] == ["auto", "half"]
    assert by_name["--max-num-seqs"]["type"] == "int"
    assert by_name["--port"]["names"] == ["--port", "-p"]


def test_the_plain_command_is_the_same_kind_of_job(made_vllm: MadeVllm, tmp_path: Path) -> None:
    log, records = tmp_path / "plain.log", ProcessRecords(tmp_path / "processes")
    job = PlainJob([str(made_vllm.executable), "exit", "4"], made_vllm.environment, log, tmp_path, records)
    assert job.wait(SOON)
    assert job.exit_code == 4
    assert "argv ['exit', '4']" in log.read_text()
    slow = PlainJob([str(made_vllm.executable), "sleep", "600"], made_vllm.environment, log, tmp_path, records)
    assert not slow.wait(0.01)
    assert len(records.all()) == 2
    job.cancel()
    slow.cancel()
    assert (job.exit_code, slow.exit_code) == (4, -signal.SIGKILL)
    assert records.all() == []


def test_a_device_that_the_import_opened_is_reported(made_vllm: MadeVllm, tmp_path: Path) -> None:
    torch = made_vllm.folder / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("from torch import cuda\n")
    (torch / "cuda.py").write_text("def is_initialized():\n    return True\n")
    package = made_vllm.folder / "vllm" / "__init__.py"
    package.write_text("import torch\n" + package.read_text())
    helper = ResidentHelper(Path(sys.executable), tmp_path / "helper.log", made_vllm.environment)
    assert helper.ready(SOON)
    assert helper.device_touched
    helper.close()
