"""What a real `tuner serve` writes and serves: JSON lines, HTTPS, and requests that try to forge a line."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from storage.service.records import SubmissionState
from tests.service.running import SMALL, Service, running_service, wait_for

FORGED = "/v1/studies/%0d%0a%7B%22level%22:%20%22forged%22%7D"
RAW = [
    b"GET /v1/studies/a\r\nX: y\nlevel: forged HTTP/1.1\r\n\r\n",
    b'GET / HTTP/1.1\r\nHost: a\r\nX-Name: a\n{"level": "forged"}\r\n\r\n',
    b"\x16\x03\x01\r\n{forged}\r\n\r\n",
]


def make_token(folder: Path) -> str:
    command = [sys.executable, "-m", "tuner", "service", "token", "add", "root", "--role", "admin"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("json")
    with running_service(folder, "--log-format", "json", token=make_token(folder)) as found:
        yield found


def log_of(service: Service, id: str, state: SubmissionState) -> list[dict[str, object]]:
    """Return the lines of an ended study's driver, which writes the last one after the study's end is stored."""
    assert service.wait(id)["state"] == state
    path = service.folder / "tuner_service" / "submissions" / id / "driver.log"
    wait_for(lambda: f'"state": "{state.value}"' in path.read_text() or None, f"the last line of {id}")
    return objects(path)


def objects(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_service_and_driver_write_json_lines_with_study_and_trial(service: Service) -> None:
    service.submit("logged", trials=3, settings=SMALL)
    lines = log_of(service, "logged", SubmissionState.DONE)
    assert {line["study"] for line in lines} == {"logged"}
    assert {line["trial"] for line in lines if "trial" in line} == {0, 1, 2}
    assert (lines[-1]["state"], lines[-1]["level"]) == ("DONE", "info")
    service.call("POST", "/v1/studies", json={"id": "broken", "settings": {"trials": 2}, "kind": "cpu"})
    last = log_of(service, "broken", SubmissionState.FAILED)[-1]
    assert (last["level"], last["culprit"], last["study"]) == ("error", "configuration", "broken")


def test_no_request_forges_a_line_or_a_header(service: Service) -> None:
    place = urlsplit(service.address)
    for request in (*RAW, f"GET {FORGED} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n".encode()):
        with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
            connection.sendall(request)
            head = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")[0]
        assert head.split(b" ")[1] in (b"400", b"401", b"404"), (request, head)
        assert b"forged" not in head
    lines = objects(service.folder / "serve-0.log")
    assert lines[0]["message"].startswith("tuner serves http://")  # type: ignore[attr-defined]
    assert {line["level"] for line in lines} <= {"info", "warning", "error"}
    assert "tnr_" not in (service.folder / "serve-0.log").read_text()
