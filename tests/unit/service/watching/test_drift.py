"""Deployed servers that the service reads: which, what it says of them, and to whom."""

import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tuner
from storage import Store, normalise_url, open_store
from storage.service.records import SubmissionState
from storage.service.store import ServiceStore, open_service_store
from tests.cli.conftest import studies_alone
from tests.service_samples import DRIVER, START, lease_of, submission
from tests.some import some
from tests.unit.use_cases.test_drift import page, read_counters
from tuner.errors import SettingError
from tuner.service.scheduler.scheduler import QueueState
from tuner.service.watching.deployed import DeployedServers, allowed_hosts
from tuner.service.watching.drift import DriftWatcher
from tuner.service.watching.messages import body_of
from tuner.use_cases.drift import Counters

ALLOWED = allowed_hosts(["gpu-7:8000", "10.0.0.0/24:8000", "[fd00::]/64:8000", "front:443"])


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("http://gpu-7:8000", "http://gpu-7:8000"),
        ("http://gpu-7:8000/v1/", "http://gpu-7:8000"),
        ("http://10.0.0.9:8000", "http://10.0.0.9:8000"),
        ("http://[fd00::1]:8000", "http://[fd00::1]:8000"),
        ("https://front", "https://front"),
    ],
)
def test_a_listed_host_and_port_is_read(given: str, read: str) -> None:
    assert ALLOWED.checked([given]) == (read,)


@pytest.mark.parametrize(
    "url",
    [
        "http://gpu-7:8001",
        "http://gpu-70:8000",
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.1.9:8000",
        "http://167772169:8000",  # 10.0.0.9 as one number
        "http://0x0a.0.0.9:8000",
        "http://gpu-7:8000@evil:80",
        "http://user@gpu-7:8000",
        "http://gpu-7:8000/admin?x=",
        "http://gpu-7:8000#x",
        "http://gpu-7:8000\n.evil",
        "file:///etc/passwd",
        "gopher://gpu-7:8000",
        "//gpu-7:8000",
        "http://gpu-7.evil:8000",
        "http://[::ffff:10.0.0.9]:8000",
        "http://[",
        "http://gpu-7:99999",
        "",
    ],
)
def test_no_other_address_is_read(url: str) -> None:
    with pytest.raises(SettingError) as caught:
        ALLOWED.checked([url])
    assert caught.value.field == "urls"
    assert "\n" not in str(caught.value)


def test_nothing_is_read_by_default() -> None:
    with pytest.raises(SettingError, match="this server reads no metrics of deployed servers"):
        DeployedServers().checked(["http://127.0.0.1:8000"])


@pytest.mark.parametrize(
    "text", ["gpu-7", "gpu-7:", "gpu-7:0", "http://gpu-7:8000", "*:8000", "10.0.0.999:8000", ":80"]
)
def test_an_operator_lists_hosts_with_ports(text: str) -> None:
    with pytest.raises(SettingError) as caught:
        allowed_hosts([text])
    assert caught.value.field == "watch_host"


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the simulated study `s` of 512 tokens in and out."""
    folder = tmp_path_factory.mktemp("watched")
    output = str(folder / "best_serve.sh")
    with studies_alone():
        tuner.optimize(study="s", trials=1, confirm_rounds=0, storage=str(folder / "tuner.db"), output=output)
    return folder / "tuner.db"


class Watched:
    """The study `s` of a service, whose servers count what a test says, minute by minute."""

    def __init__(self, service: ServiceStore, store: Store) -> None:
        self.service, self.minutes, self.notes = service, 0.0, [""]
        self.counters: list[Counters | str] = []
        self.read: list[Sequence[str]] = []
        self.watcher = DriftWatcher(service, store, ALLOWED, self._note, QueueState(), self._read, self.now)

    def _note(self, text: str, study: str | None) -> None:
        self.notes.append(text)

    def _read(self, urls: Sequence[str]) -> Counters:
        self.read.append(urls)
        found = self.counters.pop(0)
        if isinstance(found, str):
            raise SettingError("url", urls[0], found)
        return found

    def now(self) -> datetime:
        return START + timedelta(days=1, minutes=self.minutes)

    def step(self, *counters: Counters | str) -> dict[str, Any]:
        """Step a minute later, and return what is stored."""
        self.minutes += 1
        self.counters = [*counters]
        self.watcher.step()
        assert self.counters == []
        found = some(self.service.submission("s"))
        return dict(found.watch or {})

    def events(self) -> list[str]:
        return [each.data["text"] for each in self.service.events_after("s", 0) if each.kind == "drift"]


@pytest.fixture
def watched(studied: Path, tmp_path: Path) -> Iterator[Watched]:
    url = normalise_url(str(shutil.copy(studied, tmp_path)))
    with closing(open_service_store(url)) as service, closing(open_store(url)) as store:
        service.submit(submission("s", kind="simulated", webhook="team"))
        assert service.start("s", ["simulated:0"], lease_of(service), START)
        service.set_driver("s", DRIVER, START)
        service.end("s", DRIVER, SubmissionState.DONE, None, None, START)
        for message in service.due_messages(START):
            service.drop_message(message.number)
        service.set_watch("s", {"urls": ["http://gpu-7:8000"], "window_s": 60.0, "since": "1"}, START)
        yield Watched(service, store)


def counted(thousands: int, low: float = 0.0) -> Counters:
    """Return counters of so many thousand requests, a share of which have prompts of at most 500 tokens."""
    return read_counters([page(low * 1000 * thousands, 1000.0 * thousands)])


def test_traffic_as_in_the_study_is_told_and_no_event(watched: Watched) -> None:
    assert watched.step(counted(1))["text"] == "1 server: watched, no window has ended yet"
    assert watched.step(counted(2))["text"] == "1 server: as in the study, 1,000 requests in the last window"
    assert watched.read == [("http://gpu-7:8000",)] * 2
    assert watched.events() == []


def test_the_third_window_that_deviates_is_one_event_and_one_message(watched: Watched) -> None:
    watched.step(counted(1, low=1.0))
    for thousands in (2, 3):
        assert watched.step(counted(thousands, low=1.0))["drifted"] == {}
    found = watched.step(counted(4, low=1.0))
    assert [*found["drifted"]] == ["prompt"]
    assert found["text"].startswith("1 server: prompt lengths differ by 1.00, at most ")
    assert found["text"].endswith(", in 3 windows or more; recheck the study: tuner recheck s")
    watched.step(counted(5, low=1.0))  # it goes on, and is told once
    assert watched.events() == [found["text"]]
    (message,) = watched.service.due_messages(watched.now())
    body = json.loads(body_of(message))
    assert (body["type"], body["data"]["state"]) == ("study.drifted", "DONE")
    assert body["timestamp"] == (START + timedelta(days=1, minutes=4)).isoformat()
    assert body["text"] == f"tuner: deployed servers of the study s of ada: {found['text']}"
    watched.service.drop_message(message.number)
    study = some(watched.service.submission("s"))
    assert study.state is SubmissionState.DONE  # nothing else is changed


@pytest.mark.parametrize("restarted", ["servers", "service"])
def test_drift_that_lasts_over_a_restart_is_told_once(watched: Watched, restarted: str) -> None:
    for thousands in (1, 2, 3, 4):
        found = watched.step(counted(thousands, low=1.0))
    if restarted == "service":
        watched.watcher._watching.clear()
    for thousands in (0, 1, 2):  # the first one ends no window
        assert watched.step(counted(thousands, low=1.0))["text"] == found["text"]
    assert watched.events() == [found["text"]]
    assert watched.step(counted(3, low=2 / 3))["drifted"] == {}  # none of the last thousand is short


def test_a_server_that_does_not_answer_is_told_and_read_again(watched: Watched) -> None:
    watched.step(counted(1))
    found = watched.step("no answer")
    assert found["text"] == "1 server: url='http://gpu-7:8000': no answer"
    assert watched.step(counted(2))["text"] == "1 server: as in the study, 1,000 requests in the last window"


def test_a_host_that_is_no_longer_allowed_is_not_read(watched: Watched) -> None:
    watched.watcher._servers = DeployedServers()
    assert "this server reads no metrics of deployed servers" in watched.step()["problem"]
    assert watched.read == []


def test_no_further_study_is_read_once_the_service_stops(watched: Watched) -> None:
    stop = threading.Event()
    stop.set()
    watched.watcher.run(stop)
    watched.watcher.step()
    assert watched.read == []


def test_a_window_is_waited_for(watched: Watched) -> None:
    watched.step(counted(1))
    watched.minutes -= 0.5
    watched.step()
    assert len(watched.read) == 1


def test_a_watch_that_has_ended_meanwhile_is_not_written(watched: Watched) -> None:
    watched.service.set_watch("s", None, START)
    watched.service.observed("s", {"since": "1", "urls": []}, START, "drift")
    found = some(watched.service.submission("s"))
    assert found.watch is None
    assert watched.events() == []
