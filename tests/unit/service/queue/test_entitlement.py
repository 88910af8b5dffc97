"""Fair numbers of devices, worked out by hand."""

from __future__ import annotations

import pytest

from tuner.service.queue.entitlement import fair_devices


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"ann": (1.0, 9), "bob": (1.0, 9)}, {"ann": 4.0, "bob": 4.0}),
        ({"ann": (1.0, 9), "bob": (3.0, 9)}, {"ann": 2.0, "bob": 6.0}),
        ({"ann": (1.0, 9), "bob": (3.0, 2)}, {"ann": 6.0, "bob": 2.0}),
        ({"ann": (1.0, 1), "bob": (1.0, 2), "eve": (2.0, 9)}, {"ann": 1.0, "bob": 2.0, "eve": 5.0}),
        ({"ann": (1.0, 2), "bob": (1.0, 1)}, {"ann": 2.0, "bob": 1.0}),
        ({}, {}),
    ],
    ids=["equal", "weights", "a small claim", "two small claims", "enough for all", "nobody"],
)
def test_eight_devices(claims: dict[str, tuple[float, int]], expected: dict[str, float]) -> None:
    assert fair_devices(8, claims) == pytest.approx(expected)
