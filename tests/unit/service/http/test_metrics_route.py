"""`/metrics` of a running API: requests, trials and the queue arrive there."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from prometheus_client.parser import text_string_to_metric_families

from storage.service.records import SubmissionState
from tests.service_samples import DRIVER
from tests.unit.service.http.conftest import Api

Sample = tuple[str, tuple[str, ...]]
DEADLINE_S = 60.0


def scrape(api: Api) -> dict[Sample, float]:
    text = api.call("GET", "/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, tuple(dict(sorted(sample.labels.items())).values())): sample.value for sample in samples}


def test_requests_are_counted_by_their_route(api: Api) -> None:
    api.submit("first")
    for path in ("/v1/studies/first", "/v1/studies/other", "/nowhere", "/v1/nowhere/first"):
        api.call("GET", path)
    found = scrape(api)
    assert found["tuner_request_seconds_count", ("POST", "/v1/studies", "2xx")] == 1
    assert found["tuner_request_seconds_count", ("GET", "/v1/studies/{id}", "2xx")] == 1
    assert found["tuner_request_seconds_count", ("GET", "/v1/studies/{id}", "4xx")] == 1
    assert found["tuner_request_seconds_count", ("GET", "other", "4xx")] == 2
    assert scrape(api)["tuner_request_seconds_count", ("GET", "/metrics", "2xx")] == 1


def test_the_queue_and_the_devices_are_those_of_the_database(api: Api) -> None:
    for id in ("runs", "waits"):
        api.submit(id)
    lease = api.service.take_lease("scheduler", "test", 3600, datetime.now(UTC))
    assert lease is not None
    assert api.service.start("runs", ("simulated:1",), lease, datetime.now(UTC))
    found = scrape(api)
    assert found["tuner_studies", (SubmissionState.QUEUED,)] == 1
    assert found["tuner_studies", (SubmissionState.RUNNING,)] == 1
    assert found["tuner_queue_studies", ("simulated",)] == 1
    assert (found["tuner_devices", ("simulated",)], found["tuner_devices_busy", ("simulated",)]) == (2, 1)
    assert (found["tuner_devices", ("cpu",)], found["tuner_devices_busy", ("cpu",)]) == (1, 0)


def test_finished_trials_arrive_from_the_events(api: Api) -> None:
    api.submit("first")
    lease = api.service.take_lease("scheduler", "test", 3600, datetime.now(UTC))
    assert lease is not None
    api.service.start("first", ("simulated:0",), lease, datetime.now(UTC))
    api.service.set_driver("first", DRIVER, datetime.now(UTC))
    trial = {"number": 0, "state": "ok", "failure": None, "seconds": {"ready": 2.5}}
    deadline = time.monotonic() + DEADLINE_S
    while not (count := scrape(api)["tuner_trials_total", ("", "", "ok")]):  # events before the first read do not count
        assert time.monotonic() < deadline
        api.service.event("first", "trial", trial, datetime.now(UTC))
        time.sleep(0.05)
    assert scrape(api)["tuner_trial_seconds_total", ("ready",)] >= 2.5 * count
