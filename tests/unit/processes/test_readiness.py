"""Ports, and when a server is ready."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from records.trials import Failure, FailureKind, Phase
from tests.fakes import install_fake_vllm
from tests.fakes.raw_server import ENDLESS, TRICKLE, Part, answering
from tests.unit.processes.started import ROOT, Starter, classify
from tuner.errors import TrialFailed
from tuner.http import Reply
from tuner.processes import readiness
from tuner.processes.ports import FIRST_PORT, LAST_PORT, lease_port, port_answers, refuse_taken_port
from tuner.processes.readiness import wait_ready
from tuner.processes.supervisor import ServerProcess


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with lease_port(tmp_path / "ports") as lease:
        yield lease.port


def _serve(starter: Starter, port: int, **behaviour: object) -> ServerProcess:
    program = str(install_fake_vllm(starter.folder / "bin", **behaviour))
    return starter(program, "serve", "the model", "--host", "127.0.0.1", "--port", str(port), port=port)


def _wait(process: ServerProcess, port: int, deadline_s: float = 240, cancelled: threading.Event | None = None) -> None:
    wait_ready(process, "127.0.0.1", port, "the model", deadline_s, cancelled or threading.Event(), classify)


def _failure(
    process: ServerProcess, port: int, deadline_s: float = 240, cancelled: threading.Event | None = None
) -> Failure:
    with pytest.raises(TrialFailed) as caught:
        _wait(process, port, deadline_s, cancelled)
    assert caught.value.failure.phase is Phase.READY
    return caught.value.failure


def test_ready_once_our_own_server_serves_the_model(starter: Starter, port: int) -> None:
    begun = time.monotonic()

    _wait(_serve(starter, port, startup_s=0.2), port)

    assert time.monotonic() - begun > 0.2


def test_another_model_ends_the_wait(starter: Starter, port: int) -> None:
    failure = _failure(_serve(starter, port, serves="other"), port)

    assert failure.kind is FailureKind.ENVIRONMENT_BROKEN
    assert failure.message == "the server serves 'other' instead of 'the model'"


def test_an_exit_is_classified_by_its_code(starter: Starter, port: int) -> None:
    failure = _failure(_serve(starter, port, fail="oom"), port)

    assert failure == Failure(FailureKind.ENGINE_CRASH, Phase.READY, "it died", exit_code=1)


def test_an_exit_with_0_is_a_failure_too(starter: Starter, port: int) -> None:
    assert _failure(_serve(starter, port, fail="exit0"), port).exit_code == 0


def test_the_deadline_ends_the_wait(starter: Starter, port: int) -> None:
    process = _serve(starter, port, fail="hang")

    begun = time.monotonic()
    failure = _failure(process, port, deadline_s=0.4)

    assert failure.kind is FailureKind.STARTUP_TIMEOUT
    assert failure.message == "the server was not ready after 0.4 s"
    assert 0.4 <= time.monotonic() - begun < 60
    assert process.alive()


def test_cancel_ends_the_wait_at_once(starter: Starter, port: int) -> None:
    cancelled = threading.Event()
    timer = threading.Timer(0.2, cancelled.set)
    timer.start()

    begun = time.monotonic()
    failure = _failure(_serve(starter, port, fail="hang"), port, cancelled=cancelled)
    timer.join()

    assert failure.kind is FailureKind.CANCELLED
    assert time.monotonic() - begun < 60


def test_the_right_model_on_a_server_of_another_process_is_refused(starter: Starter, port: int) -> None:
    _wait(_serve(starter, port), port)
    ours = starter("/bin/sleep", "60")

    failure = _failure(ours, port)

    assert failure.kind is FailureKind.PORT_TAKEN
    assert failure.message == f"127.0.0.1:{port} is answered by a process that this trial did not start"


def test_a_silent_listener_of_another_process_is_refused(
    starter: Starter, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "_REQUEST_S", 0.5)
    ours = starter("/bin/sleep", "60")
    with socket.create_server(("127.0.0.1", port)):
        assert _failure(ours, port).kind is FailureKind.PORT_TAKEN


def test_a_listener_of_unknown_owner_is_accepted_without_proof(
    starter: Starter, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil.Process, "net_connections", lambda *_, **__: [])
    monkeypatch.setattr(psutil, "net_connections", lambda **_: [])

    _wait(_serve(starter, port), port)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


@pytest.mark.parametrize(
    ("parts", "deadline_s", "problem"),
    [
        ((HEAD, TRICKLE), 0.8, "/health: no whole answer within"),
        ((HEAD, ENDLESS), 2.5, "/health: more than 1048576 bytes"),
        ((HEAD[:-2], TRICKLE), 0.8, "/health: no whole answer within"),
    ],
)
def test_an_answer_without_an_end_does_not_outlive_the_deadline(
    starter: Starter, monkeypatch: pytest.MonkeyPatch, parts: tuple[Part, ...], deadline_s: float, problem: str
) -> None:
    monkeypatch.setattr(psutil, "net_connections", lambda **_: [])  # the server belongs to this process
    with answering(*parts) as port:
        begun = time.monotonic()
        failure = _failure(starter("/bin/sleep", "60"), port, deadline_s=deadline_s)
        assert time.monotonic() - begun < 30
    assert failure.kind is FailureKind.STARTUP_TIMEOUT
    assert failure.message.startswith(f"the server was not ready after {deadline_s} s: {problem}")


def test_a_request_that_the_deadline_cuts_short_does_not_hide_the_problem(
    starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(host: str, port: int, path: str, timeout_s: float) -> Reply:
        return Reply(None, problem="more than 1048576 bytes" if timeout_s == 0.5 else "no whole answer")

    monkeypatch.setattr(readiness, "_REQUEST_S", 0.5)
    monkeypatch.setattr(readiness, "get_local", answer)
    monkeypatch.setattr(readiness, "_refuse_other_listener", lambda *_: None)
    failure = _failure(starter("/bin/sleep", "60"), 1, deadline_s=0.8)
    assert failure.message == "the server was not ready after 0.8 s: /health: more than 1048576 bytes"


@pytest.mark.parametrize("body", [b"[" * 100_000, b"{", b"5", b'{"data": [{"id": 5}]}', b'{"data": 5}', b"\xff"])
def test_a_list_of_models_that_is_none_is_waited_for(
    starter: Starter, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(psutil, "net_connections", lambda **_: [])
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with answering(head % len(body) + body) as port:
        failure = _failure(starter("/bin/sleep", "60"), port, deadline_s=0.5)
    assert failure.kind in (FailureKind.STARTUP_TIMEOUT, FailureKind.ENVIRONMENT_BROKEN)


_HOLDER = """
import sys, time
from pathlib import Path
from tuner.processes.ports import lease_port
port = int(sys.argv[2])
lease = lease_port(Path(sys.argv[1]), first=port, last=port)
print(lease.port, flush=True)
time.sleep(60)
"""


def test_leased_ports_differ_and_lie_in_the_range(tmp_path: Path) -> None:
    leases = [lease_port(tmp_path) for _ in range(20)]

    ports = {lease.port for lease in leases}
    assert len(ports) == 20
    assert all(FIRST_PORT <= port <= LAST_PORT for port in ports)


def test_a_leased_port_is_not_leased_again_until_its_release(tmp_path: Path) -> None:
    lease = lease_port(tmp_path)
    with pytest.raises(TrialFailed) as caught:
        lease_port(tmp_path, first=lease.port, last=lease.port)
    lease.release()
    lease.release()

    assert caught.value.failure.kind is FailureKind.PORT_TAKEN
    with lease_port(tmp_path, first=lease.port, last=lease.port) as again:
        assert again.port == lease.port
    assert list(tmp_path.iterdir()) == []


def test_another_process_holds_its_port_until_it_dies(tmp_path: Path) -> None:
    with lease_port(tmp_path) as lease:
        port = lease.port
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path), str(port)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == f"{port}\n"

    with pytest.raises(TrialFailed):
        lease_port(tmp_path, first=port, last=port)
    holder.kill()
    holder.wait()
    holder.stdout.close()

    with lease_port(tmp_path, first=port, last=port) as again:
        assert again.port == port


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_with_a_listener_is_not_leased(tmp_path: Path, host: str) -> None:
    with lease_port(tmp_path) as lease:
        port = lease.port
    with socket.create_server((host, port)):
        assert port_answers("127.0.0.1", port)
        with pytest.raises(TrialFailed, match=f"127.0.0.1 from {port} to {port} is taken"):
            lease_port(tmp_path, first=port, last=port)
        with pytest.raises(TrialFailed, match=f"another program already listens on 127.0.0.1:{port}"):
            refuse_taken_port("127.0.0.1", port)

    assert not port_answers("127.0.0.1", port)
    refuse_taken_port("127.0.0.1", port)


def test_a_port_whose_old_connections_linger_is_not_leased(tmp_path: Path) -> None:
    with lease_port(tmp_path) as lease:
        address = ("127.0.0.1", lease.port)
    with socket.create_server(address) as before, socket.create_connection(address) as client:
        before.accept()[0].close()  # whoever closes first keeps the port in TIME_WAIT for a minute
        assert client.recv(1) == b""

    with pytest.raises(TrialFailed, match=f"from {lease.port} to {lease.port} is taken"):
        lease_port(tmp_path, first=lease.port, last=lease.port)
