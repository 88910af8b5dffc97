"""Servers forked from the helper: recorded before they run, and ended like others."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.engines.vllm.conftest import MadeVllm
from tests.unit.engines.vllm.test_resident import SOON, eventually, gone
from tuner.engines.server.program_engine import ServerStart
from tuner.engines.vllm.resident_client import MULTIPROC_METHOD, ResidentHelper, can_fork, start_forked
from tuner.processes.family import MARK
from tuner.processes.records import ProcessRecords
from tuner.processes.supervisor import ServerProcess


@pytest.fixture
def resident(made_vllm: MadeVllm, tmp_path: Path) -> Iterator[ResidentHelper]:
    helper = ResidentHelper(Path(sys.executable), tmp_path / "helper.log", made_vllm.environment)
    assert helper.ready(SOON)
    yield helper
    helper.close()


def fork(resident: ResidentHelper, made: MadeVllm, tmp_path: Path, *words: str) -> tuple[ServerProcess, ProcessRecords]:
    records = ProcessRecords(tmp_path / "processes")
    start = ("vllm", *words), made.environment, tmp_path / "server.log", tmp_path, records, 20001, "trial 1"
    process = start_forked(resident, ServerStart(*start))
    assert process is not None
    return process, records


def test_a_forked_server_is_recorded_and_stops(resident: ResidentHelper, made_vllm: MadeVllm, tmp_path: Path) -> None:
    process, records = fork(resident, made_vllm, tmp_path, "sleep", "600")
    (record,) = records.all()
    assert (record.process.pid, record.port, record.argv) == (process.pid, 20001, ("vllm", "sleep", "600"))
    assert process.alive()
    assert process.exit_code() is None
    assert process.stop(5) == []
    assert not process.alive()
    assert process.exit_code() == -signal.SIGTERM
    assert records.all() == []
    assert process.stop(5) == []


def test_the_exit_code_of_a_forked_server_is_reported(
    resident: ResidentHelper, made_vllm: MadeVllm, tmp_path: Path
) -> None:
    process, _ = fork(resident, made_vllm, tmp_path, "exit", "3")
    assert eventually(lambda: not process.alive())
    assert process.exit_code() == 3
    assert not gone(process.pid) or Path(f"/proc/{process.pid}").exists()
    assert process.stop(5) == []
    assert eventually(lambda: not Path(f"/proc/{process.pid}").exists())


def test_children_of_a_forked_server_are_found_and_end_with_it(
    resident: ResidentHelper, made_vllm: MadeVllm, tmp_path: Path
) -> None:
    process, _ = fork(resident, made_vllm, tmp_path, "fork-and-sleep", str(tmp_path / "note"))
    assert eventually(lambda: (tmp_path / "note.done").exists())
    child = int((tmp_path / "note.done").read_text())
    assert child in {member.pid for member in process.descendants()}
    assert process.stop(0) == []
    assert gone(child)
    assert process.exit_code() == -signal.SIGKILL


def test_forks_of_a_killed_server_end(resident: ResidentHelper, made_vllm: MadeVllm, tmp_path: Path) -> None:
    process, records = fork(resident, made_vllm, tmp_path, "fork-and-sleep", str(tmp_path / "note"))
    assert eventually(lambda: (tmp_path / "note.done").exists())
    child = int((tmp_path / "note.done").read_text())
    os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: gone(child))
    assert process.stop(0) == []
    assert records.all() == []


def test_programs_that_a_forked_server_starts_have_its_mark(made_vllm: MadeVllm, tmp_path: Path) -> None:
    main = made_vllm.folder / "vllm" / "entrypoints" / "cli" / "main.py"
    main.write_text(main.read_text().replace('"HELLO"', f'"{MARK}"'))
    helper = ResidentHelper(Path(sys.executable), tmp_path / "helper2.log", made_vllm.environment)
    process, records = fork(helper, made_vllm, tmp_path, "environment")
    (record,) = records.all()
    assert eventually(lambda: not process.alive())
    assert process.stop(5) == []
    assert f"{MARK} {record.mark}" in (tmp_path / "server.log").read_text()
    helper.close()


def test_without_a_record_no_server_runs(
    resident: ResidentHelper, made_vllm: MadeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ProcessRecords, "add", refuse)
    with pytest.raises(OSError, match="No space"):
        fork(resident, made_vllm, tmp_path, "sleep", "600")
    log = tmp_path / "server.log"
    assert not log.exists() or log.read_text() == ""


def test_a_killed_helper_takes_the_server_with_it(
    resident: ResidentHelper, made_vllm: MadeVllm, tmp_path: Path
) -> None:
    process, records = fork(resident, made_vllm, tmp_path, "sleep", "600")
    resident.close()
    assert eventually(lambda: gone(process.pid))
    assert not process.alive()
    assert process.stop(5) == []
    assert records.all() == []


def test_without_a_helper_there_is_no_fork(resident: ResidentHelper, made_vllm: MadeVllm, tmp_path: Path) -> None:
    resident.close()
    records = ProcessRecords(tmp_path / "processes")
    start = ServerStart(("vllm", "exit", "0"), {}, tmp_path / "log", tmp_path, records, 1, "x")
    assert start_forked(resident, start) is None
    assert records.all() == []


@pytest.mark.parametrize(("own", "expected"), [({}, "fork"), ({MULTIPROC_METHOD: "spawn"}, "spawn")])
def test_engine_processes_are_forked_unless_the_environment_sets_another_method(
    made_vllm: MadeVllm, tmp_path: Path, own: dict[str, str], expected: str
) -> None:
    main = made_vllm.folder / "vllm" / "entrypoints" / "cli" / "main.py"
    main.write_text(main.read_text().replace('"HELLO"', f'"{MULTIPROC_METHOD}"'))
    made = MadeVllm(made_vllm.folder, made_vllm.executable, {**made_vllm.environment, **own})
    helper = ResidentHelper(Path(sys.executable), tmp_path / "helper.log", made.environment)
    process, _ = fork(helper, made, tmp_path, "environment")
    assert eventually(lambda: not process.alive())
    assert process.stop(5) == []
    assert f"{MULTIPROC_METHOD} {expected}" in (tmp_path / "server.log").read_text()
    helper.close()


SERVES = """
import os, sys
from prometheus_client import values
from vllm.v1 import utils

def child():
    print("API server", utils.known_since_the_import, "counts", values.ValueClass, flush=True)

def main():
    utils.known_since_the_import = "not at the import"
    if sys.argv[2:] == ["several"]:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = os.getcwd()
    process = utils.start(child)
    process.join()
"""
COUNTERS = """
import os

def get_value_class():
    return "together" if "PROMETHEUS_MULTIPROC_DIR" in os.environ else "alone"

ValueClass = get_value_class()
"""
MANAGER = """
import multiprocessing

known_since_the_import = "nothing"

def start(target):
    process = multiprocessing.get_context("spawn").Process(target=target)
    process.start()
    return process
"""


@pytest.mark.parametrize(
    ("method", "words", "expected"),
    [
        ("fork", ("several",), "API server not at the import counts together"),
        ("fork", (), "API server not at the import counts alone"),
        ("spawn", ("several",), "API server nothing counts together"),
    ],
)
def test_api_servers_are_started_as_the_engine_is_and_count_together(
    made_vllm: MadeVllm, tmp_path: Path, method: str, words: tuple[str, ...], expected: str
) -> None:
    for name, text in (("vllm/v1/utils", MANAGER), ("vllm/entrypoints/cli/main", SERVES)):
        (made_vllm.folder / name).parent.mkdir(exist_ok=True)
        (made_vllm.folder / f"{name}.py").write_text(text)
    (made_vllm.folder / "prometheus_client").mkdir()
    (made_vllm.folder / "prometheus_client" / "__init__.py").touch()  # else the installed package is imported
    (made_vllm.folder / "prometheus_client" / "values.py").write_text(COUNTERS)
    helper = ResidentHelper(Path(sys.executable), tmp_path / "helper2.log", made_vllm.environment)
    environment = {**made_vllm.environment, MULTIPROC_METHOD: method}
    made = MadeVllm(made_vllm.folder, made_vllm.executable, environment)
    process, _ = fork(helper, made, tmp_path, "serve", *words)
    assert eventually(lambda: not process.alive())
    assert process.stop(5) == []
    assert expected in (tmp_path / "server.log").read_text()
    helper.close()


def test_only_variables_that_are_read_late_may_differ() -> None:
    imported = {"PATH": "/bin", "HF_HUB_OFFLINE": "1"}
    assert can_fork({**imported, "VLLM_CPU_KVCACHE_SPACE": "1"}, imported)
    assert can_fork({**imported, MULTIPROC_METHOD: "spawn"}, imported)
    assert not can_fork({**imported, "VLLM_LOGGING_LEVEL": "DEBUG"}, imported)
    assert not can_fork({"PATH": "/bin"}, imported)
