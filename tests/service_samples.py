"""Sample submissions, drivers and tokens with recognisable values."""

from datetime import UTC, datetime, timedelta
from typing import Any

from storage.service.records import Driver, Lease, Role, Submission, Token
from storage.service.store import ServiceStore

START = datetime(2026, 11, 26, 9, 0, 0, 123456, tzinfo=UTC)
DRIVER = Driver("gpu-1", 4711, 123_456_789_012, "0f4c2a3e-boot")
OTHER = Driver("gpu-2", 4711, 123_456_789_012, "0f4c2a3e-boot")
SIZED_TRAFFIC = """
arrivals: {process: poisson, rate: 8}
requests: 100
classes: {a: {input: 500, output: 100}}
slo: {a: {p95_ttft_ms: 2000, p95_tpot_ms: 100}}
"""
"""The traffic of a study of servers for a load."""


def at(seconds: float) -> datetime:
    """Return the time so many seconds after the start."""
    return START + timedelta(seconds=seconds)


def submission(id: str = "s", owner: str = "ada", **changes: Any) -> Submission:
    """A submission at the start that asks for two devices."""
    settings = {"preset": "chat", "slos": ["p99_ttft_ms<500"], "workload": {"rate": 2.5, "seed": None}}
    fields = {"kind": "h200", "gpus": 2, "priority": 0, "created_at": START, **changes}
    return Submission(id, owner, fields.pop("settings", settings), queued_at=fields["created_at"], **fields)


def token(name: str = "laptop", **changes: Any) -> Token:
    fields = {"owner": "ada", "role": Role.USER, "digest": name.ljust(64, "0"), "created_at": START, **changes}
    return Token(name, **fields)


def lease_of(store: ServiceStore, seconds: float = 3600) -> Lease:
    """Take the lease of the only scheduler."""
    lease = store.take_lease("scheduler", "a", seconds, START)
    assert lease is not None
    return lease


def run(store: ServiceStore, id: str = "s", devices: tuple[str, ...] = ("d0", "d1"), began: float = 0) -> Lease:
    """Submit a submission, start it and give it its driver."""
    store.submit(submission(id))
    lease = lease_of(store)
    assert store.start(id, devices, lease, at(began))
    store.set_driver(id, DRIVER, at(began))
    return lease
