"""A study's life in the real service: done, stopped, cancelled, resumed, and after deaths."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.service.running import SMALL, Service, drivers, running_service, start_service, wait_for

NO_VLLM = "/nowhere/vllm"
"""The machine may have a vLLM, with which the study would fail later, for another reason."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service"), environment={"TUNER_VLLM": NO_VLLM}) as found:
        yield found


def test_a_study_runs_to_its_end_and_can_be_taken_away(service: Service) -> None:
    assert service.submit("done", settings=SMALL)["state"] == "QUEUED"
    found = service.wait("done")
    assert (found["state"], found["granted"], found["progress"]["trials"]) == ("DONE", [], 6)
    assert found["gpu_seconds"] > 0
    events = service.events("done")
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    assert [e["kind"] for e in events if e["kind"] in ("queued", "started", "concluding", "done")] == [
        "queued",
        "started",
        "concluding",
        "done",
    ]
    trials = service.call("GET", "/v1/studies/done/trials")
    assert {trial["number"] for trial in trials} == set(range(6))
    assert all(trial["provenance"] == "simulated" for trial in trials)
    conclusion = service.call("GET", "/v1/studies/done/conclusion")
    assert conclusion["reason"] == found["reason"]
    headers = {"Authorization": f"Bearer {service.token}"}
    report = httpx.get(f"{service.address}/v1/studies/done/report", headers=headers, timeout=120)
    assert report.text.startswith("<!doctype html>")
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts;")
    script = httpx.get(f"{service.address}/v1/studies/done/export", headers=headers, timeout=60)
    assert script.text.startswith("#!/usr/bin/env bash")
    assert "simulated" in script.text
    unknown = httpx.get(f"{service.address}/v1/studies/done/export?format=x", headers=headers, timeout=60)
    assert (unknown.status_code, unknown.json()["status"]) == (422, 422)
    figure = service.call("GET", "/v1/studies/done/charts?name=progress")
    assert figure["progress"]["figure"]["data"]


def test_a_stopped_study_concludes_from_what_it_has_and_can_go_on(service: Service) -> None:
    service.submit("stopped", trials=400, settings={"sampler": "tpe", "min_gain": 0})
    service.wait_for_trials("stopped", 3)
    assert service.call("POST", "/v1/studies/stopped:stop")["state"] == "STOPPING"
    found = service.wait("stopped")
    assert found["state"] == "STOPPED"
    assert 3 <= found["progress"]["trials"] < 400
    assert service.call("GET", "/v1/studies/stopped/conclusion")["confirmed"] is False
    before = found["progress"]["trials"]
    service.call("POST", "/v1/studies/stopped:resume")
    service.wait_for_trials("stopped", before + 1)
    service.call("POST", "/v1/studies/stopped:cancel")
    found = service.wait("stopped")
    assert found["state"] == "CANCELLED"
    numbers = [(t["number"], t["round"]) for t in service.call("GET", "/v1/studies/stopped/trials")]
    assert len(numbers) == len(set(numbers))


def test_a_killed_driver_loses_no_trial(service: Service) -> None:
    service.submit("killed", trials=25, settings={"sampler": "tpe", "min_gain": 0})
    service.wait_for_trials("killed", 3)
    pid = service.driver_of("killed")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: any(event["kind"] == "lost" for event in service.events("killed")) or None, "a lost driver")
    found = service.wait("killed")
    assert (found["state"], found["progress"]["trials"]) == ("DONE", 25)
    ended = [(e["number"], e["kind"]) for e in service.events("killed")]
    assert [number for number, _ in ended] == list(range(1, len(ended) + 1))


@pytest.mark.release
def test_the_queue_has_more_than_the_devices(service: Service) -> None:
    for index in range(4):
        service.submit(f"many-{index}", trials=3, seed=index)
    queue = service.call("GET", "/v1/queue")
    assert len(queue["devices"]) == 3
    for index in range(4):
        assert service.wait(f"many-{index}")["state"] == "DONE"


def test_a_configuration_that_cannot_work_fails_with_its_reason(service: Service) -> None:
    settings = {"settings": {"trials": 2}, "id": "no-vllm", "kind": "cpu"}
    service.call("POST", "/v1/studies", json=settings)
    found = service.wait("no-vllm")
    assert (found["state"], found["culprit"]) == ("FAILED", "configuration")
    assert found["reason"].startswith(f"TUNER_VLLM='{NO_VLLM}': ")


def test_drivers_outlive_a_killed_service(tmp_path: Path) -> None:
    service = start_service(tmp_path)
    service.submit("long", trials=30, settings={"sampler": "tpe", "min_gain": 0})
    service.wait_for_trials("long", 2)
    pid = service.driver_of("long")
    service.kill()
    assert drivers(tmp_path) == [pid]
    with running_service(tmp_path, token=service.token) as again:
        found = again.wait("long")
        assert (found["state"], found["progress"]["trials"]) == ("DONE", 30)
        assert [event["kind"] for event in again.events("long")].count("started") == 1


def test_a_service_that_is_stopped_takes_its_drivers_along(tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        service.submit("long", trials=200, settings={"sampler": "tpe", "min_gain": 0})
        service.wait_for_trials("long", 2)
    with running_service(tmp_path, token=service.token) as again:
        found = again.wait_for_trials("long", 3)
        assert [event["kind"] for event in again.events("long")].count("started") == 2
        again.call("POST", "/v1/studies/long:cancel")
        assert again.wait("long")["state"] == "CANCELLED"
    assert found["owner"] == "admin"
