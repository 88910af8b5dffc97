from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from records.trials import FailureKind
from tests.unit.processes.started import ROOT
from tuner.errors import TrialFailed
from tuner.processes.ports import FIRST_PORT, LAST_PORT, lease_port, port_answers, refuse_taken_port

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
