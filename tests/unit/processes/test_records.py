"""Records of processes, secrets, and shared memory of processes that were killed."""

import json
import mmap
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from tests.fakes import install_fake_vllm
from tests.unit.processes.started import (
    OWNER,
    Starter,
    classify,
    driver,
    identity_of,
    owner,
    python,
    until,
    watchdogs,
)
from tuner.errors import TrialFailed
from tuner.processes.family import (
    SHARED_MEMORY_FOLDER,
    Identity,
    find_family,
    is_alive,
    mapped_segments,
    own_identity,
    read_process,
    remove_unused,
    send_signal,
)
from tuner.processes.readiness import wait_ready
from tuner.processes.records import ProcessRecord, ProcessRecords, reap_orphans
from tuner.processes.secrets import (
    Secrets,
    is_secret_flag,
    is_secret_variable,
    mask_url_passwords,
    shell_word,
    url_passwords,
)
from tuner.processes.supervisor import ServerProcess

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


@pytest.fixture
def bystander(tmp_path: Path) -> Iterator[Identity]:
    """A server of another user with the same name, in a session of its own."""
    program = str(install_fake_vllm(tmp_path / "bystander"))
    popen = subprocess.Popen([program, "serve", "m", "--port", "0"], stdout=subprocess.PIPE, start_new_session=True)
    assert popen.stdout is not None
    while b"startup complete" not in popen.stdout.readline():
        assert popen.poll() is None
    identity = identity_of(popen.pid)
    yield identity
    os.killpg(popen.pid, signal.SIGKILL)
    popen.wait()
    popen.stdout.close()


def _dead() -> Identity:
    """Return the identity of a process that has ended."""
    popen = subprocess.Popen(["/bin/sleep", "60"])
    identity = identity_of(popen.pid)
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
    with driver() as above, owner(OWNER, tmp_path, program, json.dumps(identity_of(above.pid))) as (worker, left):
        until(lambda: len(watchdogs(tmp_path / "processes")) == 1)
        (watchdog,) = watchdogs(tmp_path / "processes")
        send_signal(watchdog, signal.SIGKILL)
        until(lambda: not is_alive(watchdog))
        worker.kill()
        worker.wait()
        assert len(left) == 2
        assert all(is_alive(process) for process in left)

        reap_orphans(tmp_path / "processes", grace_s=2)

        assert not any(is_alive(process) for process in left)
    assert len(bystanders) == 2
    assert all(is_alive(process) for process in bystanders)
    assert ProcessRecords(tmp_path / "processes").all() == []


def test_a_process_with_a_living_owner_is_not_touched(starter: Starter) -> None:
    process = starter("/bin/sleep", "60")

    reap_orphans(starter.records.folder)
    assert process.alive()
    assert len(starter.records.all()) == 1


def test_a_process_whose_driver_is_dead_is_an_orphan_while_its_worker_lives(starter: Starter) -> None:
    starter.records = ProcessRecords(starter.records.folder, driver=_dead())
    process = starter("/bin/sleep", "60")

    reap_orphans(starter.records.folder, grace_s=2)

    assert not process.alive()


def test_a_process_without_readable_environment_belongs_to_the_family_whose_file_it_has_open(tmp_path: Path) -> None:
    records, folder = ProcessRecords(tmp_path / "processes"), tmp_path / "family"
    folder.mkdir()
    _forge(records, _dead(), folder=str(folder))
    with (folder / "log").open("w") as inside, (tmp_path / "family-log").open("w") as outside:
        agent = subprocess.Popen(["/bin/sleep", "60"], env={}, stdout=inside)
        reader = subprocess.Popen(["/bin/sleep", "60"], env={"NAME": "value"}, stdout=inside)
        stranger = subprocess.Popen(["/bin/sleep", "60"], env={}, stdout=outside)
    identities = [identity_of(popen.pid) for popen in (agent, reader, stranger)]

    reap_orphans(records.folder, grace_s=0)
    alive = [is_alive(identity) for identity in identities]
    for popen in (agent, reader, stranger):
        popen.kill()
        popen.wait()

    assert alive == [False, True, True]
    assert not folder.exists()


@pytest.mark.parametrize("recycled", ["process", "member", "boot"])
def test_a_process_with_a_recycled_id_is_not_ended(tmp_path: Path, bystander: Identity, recycled: str) -> None:
    records = ProcessRecords(tmp_path / "processes")
    earlier = Identity(bystander.pid, bystander.started - 1)
    if recycled == "process":
        _forge(records, earlier)
    elif recycled == "member":
        _forge(records, _dead(), members=(earlier,))
    else:
        _forge(records, bystander, boot="another boot")

    reap_orphans(records.folder, grace_s=0.1)

    assert is_alive(bystander)
    assert records.all() == []


def test_processes_of_a_session_with_a_recycled_id_are_not_ended(tmp_path: Path) -> None:
    code = f"{_CHILD_WITHOUT_ENVIRONMENT}\nimport time\ntime.sleep(60)"
    with subprocess.Popen(python(code), stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        child = identity_of(int(leader.stdout.readline()))
        records = ProcessRecords(tmp_path / "processes")
        _forge(records, Identity(leader.pid, identity_of(leader.pid).started - 1))

        reap_orphans(records.folder, grace_s=0.1)
        lives = is_alive(child)
        os.killpg(leader.pid, signal.SIGKILL)

    assert lives


def test_a_group_whose_recycled_leader_is_gone_is_not_ended(starter: Starter, tmp_path: Path) -> None:
    leader = starter("/bin/sh", "-c", "sleep 60 & echo $!")
    until(lambda: not leader.alive() and starter.output().endswith("\n"))
    child = identity_of(int(starter.output()))
    records = ProcessRecords(tmp_path / "others")
    record = _forge(records, leader.identity)
    os.waitpid(leader.pid, 0)

    reap_orphans(records.folder, grace_s=0.1)

    assert read_process(leader.pid) is None
    assert os.getpgid(child.pid) == record.process.pid
    assert is_alive(child)


@pytest.mark.parametrize(
    "code",
    [_CHILD_WITHOUT_ENVIRONMENT, _CHILD_THAT_BLANKS_THE_BEGINNING_OF_ITS_ENVIRONMENT],
    ids=["empty", "blanked"],
)
def test_a_group_without_leader_and_readable_environment_is_ended(starter: Starter, code: str) -> None:
    leader = starter(*python(code), ZZZ="something that stays")
    until(lambda: not leader.alive() and starter.output().endswith("\n"))
    child = identity_of(int(starter.output()))
    _forge(starter.records, leader.identity)
    os.waitpid(leader.pid, 0)

    reap_orphans(starter.records.folder)

    assert not is_alive(child)


@pytest.mark.parametrize("place", ["host", "namespace"])
def test_a_record_of_another_host_or_namespace_is_left_alone(tmp_path: Path, bystander: Identity, place: str) -> None:
    records = ProcessRecords(tmp_path / "processes")
    _forge(records, bystander, **{place: "elsewhere"})

    reap_orphans(records.folder)
    assert is_alive(bystander)
    assert len(records.all()) == 1


def test_a_file_that_is_no_record_is_left_alone(tmp_path: Path) -> None:
    for name, text in {"a": "{", "b": "[]", "c": '{"process": [1]}'}.items():
        (tmp_path / f"{name}.json").write_text(text)

    reap_orphans(tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 3


def test_a_record_with_fields_of_another_version_is_read_and_one_that_lacks_a_field_is_not(tmp_path: Path) -> None:
    record = ProcessRecords(tmp_path).add("a" * 32, Identity(2, 3), None, ("vllm",), "s/1")
    written = asdict(record)
    (tmp_path / f"{record.mark}.json").write_text(json.dumps({**written, "cgroup": "/tuner"}))
    del written["boot"]
    (tmp_path / "b.json").write_text(json.dumps(written))

    assert ProcessRecords(tmp_path).all() == [record]


def test_without_a_folder_there_are_no_orphans(tmp_path: Path) -> None:
    reap_orphans(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    records = ProcessRecords(tmp_path)
    record = records.add("a" * 32, Identity(2, 3), 20_000, ("vllm", "serve"), "s/1")
    updated = records.update(record, {Identity(5, 6)}, {Path("/dev/shm/psm_1")})

    assert records.all() == [updated]
    assert updated == replace(record, members=(Identity(5, 6),), segments=("/dev/shm/psm_1",))
    assert record.owners == (own_identity(),)
    assert [path.name for path in tmp_path.iterdir()] == [f"{'a' * 32}.json"]


def test_names_of_variables() -> None:
    secrets = ("HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "OPENAI_APIKEY", "my_password", "GCP_CREDENTIALS")
    assert all(map(is_secret_variable, secrets))
    others = ("TOKENIZERS_PARALLELISM", "VLLM_MAX_TOKENS", "VLLM_CPU_KVCACHE_SPACE", "KEYBOARD")
    assert not any(map(is_secret_variable, others))


def test_names_of_flags() -> None:
    assert all(map(is_secret_flag, ("--api-key", "--hf-token", "--hf_token", "--ssl-keyfile-password")))
    others = ("--tokenizer", "--max-num-batched-tokens", "--long-prefill-token-threshold", "--ssl-keyfile", "-q")
    assert not any(map(is_secret_flag, others))


def test_passwords_of_urls() -> None:
    text = "postgresql://me:pa%40ss@host:5432/db?sslpassword=other&x=1 http://host:8000/v1 http://me:${PW}@host"
    assert url_passwords(text) == ["pa%40ss", "other"]
    assert mask_url_passwords("postgresql://me:pw@h/d?password=x&y=1") == "postgresql://me:***@h/d?password=***&y=1"
    assert mask_url_passwords("http://host:8000/v1") == "http://host:8000/v1"


def test_references_are_expanded_and_values_replaced() -> None:
    secrets = Secrets({"A": "value-of-a", "B": "value-of-a-and-more", "C": "short"})
    assert secrets.expand("x ${A} ${B} ${D} $A") == "x value-of-a value-of-a-and-more ${D} $A"
    assert secrets.redact("value-of-a-and-more value-of-a short") == "${B} ${A} short"
    assert secrets.redact_bytes(b"\xffvalue-of-a") == b"\xff${A}"
    assert "value" not in repr(secrets)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("${A}", '"${A}"'),
        ("a b${A}$(x)", "'a b'\"${A}\"'$(x)'"),
        ("${B}", "'${B}'"),
        ("", "''"),
        ("plain", "plain"),
    ],
)
def test_words_of_a_shell(text: str, quoted: str) -> None:
    assert shell_word(text, {"A"}) == quoted


_MAKES_A_SEGMENT = """
import time
from multiprocessing.shared_memory import SharedMemory
segment = SharedMemory(create=True, size=4096)
print(segment.name, flush=True)
time.sleep(60)
"""


def test_segments_of_a_killed_server_are_removed(starter: Starter) -> None:
    process = starter(*python(_MAKES_A_SEGMENT))
    until(lambda: starter.output().endswith("\n"))
    segment = SHARED_MEMORY_FOLDER / starter.output().strip()
    assert segment.exists()
    assert segment in mapped_segments([process.pid])

    assert process.stop(0) == []

    assert not segment.exists()


@pytest.fixture
def segment(starter: Starter) -> Iterator[tuple[ServerProcess, Path]]:
    process = starter(*python(_MAKES_A_SEGMENT))
    until(lambda: starter.output().endswith("\n"))
    path = SHARED_MEMORY_FOLDER / starter.output().strip()
    process.record_family()
    assert starter.records.all()[0].segments == (str(path),)
    yield process, path
    path.unlink(missing_ok=True)


def _kill_all(process: ServerProcess) -> None:
    """Kill a family at once: stopped first, so that Python's resource tracker cannot remove what its parent left."""
    family = {process.identity, *process.descendants()}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for member in family:
            send_signal(member, number)
    until(lambda: not process.alive() and not process.descendants())


def test_segments_of_a_server_that_was_found_dead_are_removed(segment: tuple[ServerProcess, Path]) -> None:
    process, path = segment
    _kill_all(process)
    assert path.exists()

    assert process.stop(0) == []

    assert not path.exists()


def test_segments_of_a_server_that_died_with_its_worker_are_removed(
    segment: tuple[ServerProcess, Path], starter: Starter
) -> None:
    process, path = segment
    _kill_all(process)
    (record,) = starter.records.all()
    dead = replace(record, owners=(process.identity,))
    (starter.records.folder / f"{record.mark}.json").write_text(json.dumps(asdict(dead)))

    reap_orphans(starter.records.folder, grace_s=0)

    assert not path.exists()
    assert starter.records.all() == []


def test_a_segment_of_a_dead_server_stays_while_another_process_has_it_mapped(
    segment: tuple[ServerProcess, Path],
) -> None:
    process, path = segment
    user = SharedMemory(name=path.name)
    try:
        _kill_all(process)
        assert process.stop(0) == []
        assert path.exists()
    finally:
        user.close()
        user.unlink()


def test_segments_of_a_starting_server_are_recorded(starter: Starter) -> None:
    process = starter(*python(_MAKES_A_SEGMENT))
    cancelled = threading.Event()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait_ready, process, "127.0.0.1", 1, "m", 240, cancelled, classify)
        until(lambda: starter.records.all()[0].segments)
        cancelled.set()
        assert isinstance(waiting.exception(), TrialFailed)


def test_segments_that_another_process_has_mapped_stay() -> None:
    segment = SharedMemory(create=True, size=4096)
    try:
        path = SHARED_MEMORY_FOLDER / segment.name
        assert path in mapped_segments([os.getpid()])
        remove_unused([path])
        assert path.exists()
    finally:
        segment.close()
        segment.unlink()


def test_other_files_and_processes_that_are_gone_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "psm_of_another_folder"
    file.write_bytes(b"x" * 4096)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0):
        assert str(file) in Path("/proc/self/maps").read_text()
        assert file not in mapped_segments([os.getpid()])
    with subprocess.Popen(["/bin/true"]) as gone:
        gone.wait()
    assert mapped_segments([gone.pid]) == set()
