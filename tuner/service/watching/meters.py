"""The metrics of one API process, in Prometheus' format.

Gauges are read from the database at each scrape. Counters begin at 0 with the process: trials are counted from the
events that the process reads for its streams anyway, so a scrape never counts the rows of trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from records.trials import Phase
from storage.service.records import Event, Figures, SubmissionState
from tuner.service.watching.logs import CULPRITS

CONTENT_TYPE = CONTENT_TYPE_LATEST
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
"""The label of what has no name of its own: methods and addresses that do not exist."""

OWN = "own"
"""The name of the tuner's own work among a trial's phases."""

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the latencies' buckets, in seconds."""


class Meters:
    """Counters of one process, and the text of a scrape."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        about = "Finished trials since this process started, by state, type of failure and its culprit."
        labels = ["state", "failure", "culprit"]
        self._trials = Counter("tuner_trials", about, labels, registry=self._registry)
        about = "Attempts of trials that failed and ran again, by type of failure."
        self._retries = Counter("tuner_trial_retries", about, ["failure"], registry=self._registry)
        about = "Seconds that finished trials spent in each phase."
        self._seconds = Counter("tuner_trial_seconds", about, ["phase"], registry=self._registry)
        about = "Seconds until an answer began, by method, address and class of status."
        labels = ["method", "route", "status"]
        self._requests = Histogram("tuner_request_seconds", about, labels, registry=self._registry, buckets=BUCKETS)
        self._name_all()

    def _name_all(self) -> None:
        """Begin every known series at 0: Prometheus does not see an increase from nothing to 1."""
        for state in ("ok", "infeasible", "cut"):
            self._trials.labels(state, "", "")
        for kind, culprit in CULPRITS.items():
            self._trials.labels("failed", kind, culprit)
            self._retries.labels(kind)
        for phase in (*(phase.value for phase in Phase), OWN):
            self._seconds.labels(phase)

    def answered(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Count an answer that began after so many seconds.

        `route` is the address with names for its variable parts, such as `/v1/studies/{id}`; None: there is none.
        """
        name = method if method in METHODS else OTHER
        self._requests.labels(name, route or OTHER, f"{status // 100}xx").observe(seconds)

    def happened(self, events: Iterable[Event]) -> None:
        """Count the trials of new events."""
        for event in events:
            if event.kind == "trial":
                self._count_trial(event.data)
            elif event.kind == "trial_retried":
                self._retries.labels(event.data.get("kind", "")).inc()

    def _count_trial(self, data: Mapping[str, Any]) -> None:
        """Count a trial; an event of another version of the driver may have other types of failure, or no seconds."""
        kind = (data.get("failure") or {}).get("kind", "")
        self._trials.labels(data.get("state", ""), kind, CULPRITS.get(kind, "")).inc()
        for phase, seconds in data.get("seconds", {}).items():
            self._seconds.labels(phase).inc(max(0.0, seconds))

    def text(self, figures: Figures, devices: Mapping[str, Sequence[str]], leads: bool, now: datetime) -> bytes:
        """Return the answer to a scrape; `leads` says whether this process schedules."""
        registry = CollectorRegistry()
        states = Gauge("tuner_studies", "Submitted studies by state.", ["state"], registry=registry)
        for state in SubmissionState:
            states.labels(state.value).set(figures.states[state])
        about = "Studies that wait for devices, by their kind."
        waiting = Gauge("tuner_queue_studies", about, ["kind"], registry=registry)
        about = "Seconds that the oldest waiting study has waited, by kind of devices; 0 without one."
        oldest = Gauge("tuner_queue_oldest_seconds", about, ["kind"], registry=registry)
        for kind in sorted({*devices, *figures.waiting}):
            found = figures.waiting.get(kind)
            waiting.labels(kind).set(0 if found is None else found.count)
            oldest.labels(kind).set(0 if found is None else max(0.0, (now - found.since).total_seconds()))
        total = Gauge("tuner_devices", "Devices by kind.", ["kind"], registry=registry)
        busy = Gauge("tuner_devices_busy", "Devices that a study has, by kind.", ["kind"], registry=registry)
        granted = frozenset(figures.granted)
        for kind, names in devices.items():
            total.labels(kind).set(len(names))
            busy.labels(kind).set(sum(name in granted for name in names))
        Gauge("tuner_scheduler_leads", "1 if this process schedules.", registry=registry).set(leads)
        return generate_latest(registry) + generate_latest(self._registry)
