"""The metrics of an API process: what is counted, and the text of a scrape."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from storage.service.records import Event, SubmissionState
from storage.service.watching.records import Figures, Waiting
from tuner.service.watching.meters import Meters

NOW = datetime(2026, 11, 26, 9, tzinfo=UTC)
S = SubmissionState
EMPTY = Figures(dict.fromkeys(SubmissionState, 0), {}, ())


def values(meters: Meters, figures: Figures = EMPTY, devices: Any = None) -> dict[tuple[str, ...], float]:
    """Return the value of each sample of a scrape by its name and the values of its labels, sorted by label."""
    text = meters.text(figures, devices or {}, True, NOW).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *dict(sorted(sample.labels.items())).values()): sample.value for sample in samples}


def event(kind: str, /, **data: Any) -> Event:
    return Event("s", 1, NOW, kind, data)


def test_trials_are_counted_by_state_failure_and_culprit() -> None:
    meters = Meters()
    failure = {"kind": "engine_crash", "message": "m"}
    meters.happened(
        [
            event("trial", state="ok", failure=None, seconds={"ready": 20.5, "benchmark": 30.0}),
            event("trial", state="failed", failure=failure, seconds={"ready": 2.0}),
            event("trial", state="failed", failure={"kind": "worker_lost", "message": "m"}, seconds={}),
            event("trial_retried", kind="port_taken", message="m"),
            event("stage", stage="search"),
        ]
    )
    found = values(meters)
    assert found["tuner_trials_total", "", "", "ok"] == 1
    assert found["tuner_trials_total", "configuration", "engine_crash", "failed"] == 1
    assert found["tuner_trials_total", "infrastructure", "worker_lost", "failed"] == 1
    assert found["tuner_trials_total", "tuner", "tuner_error", "failed"] == 0
    assert found["tuner_trial_retries_total", "port_taken"] == 1
    assert found["tuner_trial_seconds_total", "ready"] == 22.5
    assert found["tuner_trial_seconds_total", "benchmark"] == 30
    assert found["tuner_trial_seconds_total", "own"] == 0


def test_a_driver_of_another_version_does_not_stop_the_counting() -> None:
    meters = Meters()
    odd = {"kind": "of_next_year", "message": "m"}
    meters.happened([event("trial", state="failed", failure=odd), event("trial", state="ok", failure=None)])
    found = values(meters)
    assert found["tuner_trials_total", "", "of_next_year", "failed"] == 1
    assert found["tuner_trials_total", "", "", "ok"] == 1


def test_the_queue_in_numbers() -> None:
    states = {**EMPTY.states, S.QUEUED: 3, S.RUNNING: 1}
    waiting = {"h200": Waiting(3, NOW - timedelta(seconds=90))}
    figures = Figures(states, waiting, ("h200:0", "simulated:1"))
    devices = {"h200": ("h200:0", "h200:1"), "simulated": ("simulated:0", "simulated:1")}
    found = values(Meters(), figures, devices)
    assert (found["tuner_studies", "QUEUED"], found["tuner_studies", "DONE"]) == (3, 0)
    assert (found["tuner_queue_studies", "h200"], found["tuner_queue_oldest_seconds", "h200"]) == (3, 90)
    assert (found["tuner_queue_studies", "simulated"], found["tuner_queue_oldest_seconds", "simulated"]) == (0, 0)
    assert (found["tuner_devices", "h200"], found["tuner_devices_busy", "h200"]) == (2, 1)
    assert found["tuner_scheduler_leads",] == 1


@pytest.mark.parametrize(
    ("method", "route", "status", "labels"),
    [
        ("GET", "/v1/studies/{id}", 200, ("GET", "/v1/studies/{id}", "2xx")),
        ("BREW", None, 404, ("other", "other", "4xx")),
    ],
)
def test_latencies_have_few_labels(method: str, route: str | None, status: int, labels: tuple[str, ...]) -> None:
    """Whoever asks for made-up addresses or methods makes no new series."""
    meters = Meters()
    for seconds in (0.004, 0.02, 3.0):
        meters.answered(method, route, status, seconds)
    found = values(meters)
    assert found["tuner_request_seconds_count", *labels] == 3
    assert found["tuner_request_seconds_sum", *labels] == pytest.approx(3.024)
    assert found["tuner_request_seconds_bucket", "0.005", *labels] == 1
    assert found["tuner_request_seconds_bucket", "0.025", *labels] == 2
    assert found["tuner_request_seconds_bucket", "2.5", *labels] == 2
