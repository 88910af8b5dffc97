from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.fakes import install_fake_vllm
from tests.unit.processes.started import ROOT, Starter, python, until, watchdogs
from tuner.processes.family import Identity, find_family, is_alive, own_identity, read_process, send_signal
from tuner.processes.records import ProcessRecord, ProcessRecords, reap_orphans

_OWNER = """
import json, os, sys, time
from pathlib import Path
from tuner.processes.supervisor import start_server
from tuner.processes.records import ProcessRecords

here, program = Path(sys.argv[1]), sys.argv[2]
argv = [program, "serve", "m", "--port", "0"]
process = start_server(argv, dict(os.environ), here / "log", here, ProcessRecords(here / "processes"), 0, "study/7")
while "startup complete" not in (here / "log").read_text():
    time.sleep(0.01)
print(json.dumps([process.identity, *process.descendants()]), flush=True)
time.sleep(60)
"""


_CHILD_WITHOUT_ENVIRONMENT = "import subprocess\nprint(subprocess.Popen(['/bin/sleep', '60'], env={}).pid, flush=True)"

_CHILD_THAT_BLANKS_THE_BEGINNING_OF_ITS_ENVIRONMENT = """
import ctypes, os, time
if os.fork() == 0:
    environ = int(open("/proc/self/stat").read().rpartition(")")[2].split()[47])
    text = open("/proc/self/environ", "rb").read()
    ctypes.memset(environ, 0, text.index(b"TUNER_PROCESS_ID") + 20)
    print(os.getpid(), flush=True)
    time.sleep(60)
"""


def _identity(pid: int) -> Identity:
    seen = read_process(pid)
    assert seen is not None
    return seen.identity


@pytest.fixture
def bystander(tmp_path: Path) -> Iterator[Identity]:
    """A server of another user with the same name, in a session of its own."""
    program = str(install_fake_vllm(tmp_path / "bystander"))
    popen = subprocess.Popen([program, "serve", "m", "--port", "0"], stdout=subprocess.PIPE, start_new_session=True)
    assert popen.stdout is not None
    while b"startup complete" not in popen.stdout.readline():
        assert popen.poll() is None
    identity = _identity(popen.pid)
    yield identity
    os.killpg(popen.pid, signal.SIGKILL)
    popen.wait()
    popen.stdout.close()


def _dead() -> Identity:
    """Return the identity of a process that has ended."""
    popen = subprocess.Popen(["/bin/sleep", "60"])
    identity = _identity(popen.pid)
    popen.kill()
    popen.wait()
    return identity


def _forge(records: ProcessRecords, process: Identity, **changes: object) -> ProcessRecord:
    """Write a record of `process` whose owner is dead."""
    record = records.add("f" * 32, process, 1, ("vllm",), "forged")
    forged = replace(record, owners=(_dead(),), **changes)  # type: ignore[arg-type]
    (records.folder / f"{record.mark}.json").write_text(json.dumps(asdict(forged)))
    return forged


@pytest.mark.parametrize("behaviour", [{}, {"child_setsid": True, "child_sigterm": "ignore"}], ids=["plain", "setsid"])
def test_only_the_processes_of_a_killed_owner_are_ended(
    tmp_path: Path, bystander: Identity, behaviour: dict[str, object]
) -> None:
    program = str(install_fake_vllm(tmp_path / "bin", **behaviour))
    bystanders = find_family(bystander, "none")
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path), program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    left = {Identity(*pair) for pair in json.loads(owner.stdout.readline())}
    (watchdog,) = watchdogs(tmp_path / "processes")
    send_signal(watchdog, signal.SIGKILL)
    until(lambda: not is_alive(watchdog))
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert len(left) == 2
    assert all(is_alive(process) for process in left)

    (reaped,) = reap_orphans(tmp_path / "processes", grace_s=2)

    assert set(reaped.ended) == left
    assert reaped.survivors == ()
    assert reaped.record.label == "study/7"
    assert not any(is_alive(process) for process in left)
    assert len(bystanders) == 2
    assert all(is_alive(process) for process in bystanders)
    assert reap_orphans(tmp_path / "processes") == []


def test_a_process_with_a_living_owner_is_not_touched(starter: Starter) -> None:
    process = starter("/bin/sleep", "60")

    assert reap_orphans(starter.records.folder) == []
    assert process.alive()
    assert len(starter.records.all()) == 1


def test_a_process_whose_driver_is_dead_is_an_orphan_while_its_worker_lives(starter: Starter) -> None:
    starter.records = ProcessRecords(starter.records.folder, driver=_dead())
    process = starter("/bin/sleep", "60")

    (reaped,) = reap_orphans(starter.records.folder, grace_s=2)

    assert reaped.ended == (process.identity,)
    assert not process.alive()


def test_a_process_without_readable_environment_belongs_to_the_family_whose_file_it_has_open(tmp_path: Path) -> None:
    records, folder = ProcessRecords(tmp_path / "processes"), tmp_path / "family"
    folder.mkdir()
    _forge(records, _dead(), folder=str(folder))
    with (folder / "log").open("w") as inside, (tmp_path / "family-log").open("w") as outside:
        agent = subprocess.Popen(["/bin/sleep", "60"], env={}, stdout=inside)
        reader = subprocess.Popen(["/bin/sleep", "60"], env={"NAME": "value"}, stdout=inside)
        stranger = subprocess.Popen(["/bin/sleep", "60"], env={}, stdout=outside)
    identities = [_identity(popen.pid) for popen in (agent, reader, stranger)]

    (reaped,) = reap_orphans(records.folder, grace_s=0)
    alive = [is_alive(identity) for identity in identities]
    for popen in (agent, reader, stranger):
        popen.kill()
        popen.wait()

    assert alive == [False, True, True]
    assert reaped.ended == (identities[0],)
    assert not folder.exists()


def test_a_recycled_id_is_not_ended(tmp_path: Path, bystander: Identity) -> None:
    records = ProcessRecords(tmp_path / "processes")
    _forge(records, Identity(bystander.pid, bystander.started - 1))

    (reaped,) = reap_orphans(records.folder, grace_s=0.1)

    assert reaped.ended == ()
    assert is_alive(bystander)
    assert records.all() == []


def test_processes_of_a_session_with_a_recycled_id_are_not_ended(tmp_path: Path) -> None:
    code = f"{_CHILD_WITHOUT_ENVIRONMENT}\nimport time\ntime.sleep(60)"
    with subprocess.Popen(python(code), stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        child = _identity(int(leader.stdout.readline()))
        records = ProcessRecords(tmp_path / "processes")
        _forge(records, Identity(leader.pid, _identity(leader.pid).started - 1))

        (reaped,) = reap_orphans(records.folder, grace_s=0.1)
        lives = is_alive(child)
        os.killpg(leader.pid, signal.SIGKILL)

    assert reaped.ended == ()
    assert lives


def test_a_recycled_member_is_not_ended(tmp_path: Path, bystander: Identity) -> None:
    records = ProcessRecords(tmp_path / "processes")
    _forge(records, _dead(), members=(Identity(bystander.pid, bystander.started + 1),))

    (reaped,) = reap_orphans(records.folder, grace_s=0.1)

    assert reaped.ended == ()
    assert is_alive(bystander)


def test_a_group_whose_recycled_leader_is_gone_is_not_ended(starter: Starter, tmp_path: Path) -> None:
    leader = starter("/bin/sh", "-c", "sleep 60 & echo $!")
    until(lambda: not leader.alive() and starter.output().endswith("\n"))
    child = _identity(int(starter.output()))
    records = ProcessRecords(tmp_path / "others")
    record = _forge(records, leader.identity)
    os.waitpid(leader.pid, 0)

    (reaped,) = reap_orphans(records.folder, grace_s=0.1)

    assert read_process(leader.pid) is None
    assert os.getpgid(child.pid) == record.process.pid
    assert reaped.ended == ()
    assert is_alive(child)


@pytest.mark.parametrize(
    "code",
    [_CHILD_WITHOUT_ENVIRONMENT, _CHILD_THAT_BLANKS_THE_BEGINNING_OF_ITS_ENVIRONMENT],
    ids=["empty", "blanked"],
)
def test_a_group_without_leader_and_readable_environment_is_ended(starter: Starter, code: str) -> None:
    leader = starter(*python(code), ZZZ="something that stays")
    until(lambda: not leader.alive() and starter.output().endswith("\n"))
    child = _identity(int(starter.output()))
    _forge(starter.records, leader.identity)
    os.waitpid(leader.pid, 0)

    reaped = next(found for found in reap_orphans(starter.records.folder) if found.record.label == "forged")

    assert reaped.ended == (child,)
    assert not is_alive(child)


def test_a_record_from_before_the_boot_is_dropped_and_nothing_ended(tmp_path: Path, bystander: Identity) -> None:
    records = ProcessRecords(tmp_path / "processes")
    _forge(records, bystander, boot="another boot")

    (reaped,) = reap_orphans(records.folder)

    assert reaped.ended == ()
    assert is_alive(bystander)
    assert records.all() == []


@pytest.mark.parametrize("place", ["host", "namespace"])
def test_a_record_of_another_host_or_namespace_is_left_alone(tmp_path: Path, bystander: Identity, place: str) -> None:
    records = ProcessRecords(tmp_path / "processes")
    _forge(records, bystander, **{place: "elsewhere"})

    assert reap_orphans(records.folder) == []
    assert is_alive(bystander)
    assert len(records.all()) == 1


def test_a_file_that_is_no_record_is_left_alone(tmp_path: Path) -> None:
    for name, text in {"a": "{", "b": "[]", "c": '{"process": [1]}'}.items():
        (tmp_path / f"{name}.json").write_text(text)

    assert reap_orphans(tmp_path) == []
    assert len(list(tmp_path.glob("*.json"))) == 3


def test_without_a_folder_there_are_no_orphans(tmp_path: Path) -> None:
    assert reap_orphans(tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_a_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    records = ProcessRecords(tmp_path)
    record = records.add("a" * 32, Identity(2, 3), 20_000, ("vllm", "serve"), "s/1")
    updated = records.update(record, {Identity(5, 6)}, {Path("/dev/shm/psm_1")})

    assert records.all() == [updated]
    assert updated == replace(record, members=(Identity(5, 6),), segments=("/dev/shm/psm_1",))
    assert record.owners == (own_identity(),)
    assert [path.name for path in tmp_path.iterdir()] == [f"{'a' * 32}.json"]
