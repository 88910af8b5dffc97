"""The fair share of devices of each owner."""

from __future__ import annotations

from collections.abc import Mapping


def fair_devices(devices: int, claims: Mapping[str, tuple[float, int]]) -> dict[str, float]:
    """Return the fair number of devices of each owner, which need not be whole.

    Devices are shared by weight. What an owner cannot use is shared among the others in the same way (max-min fairness
    with weights).

    Args:
        devices: number of devices.
        claims: weight and number of devices that the owner could use, by owner.
    """
    fair: dict[str, float] = {}
    left = float(devices)
    weights = sum(weight for weight, _ in claims.values())
    for name, (weight, wanted) in sorted(claims.items(), key=lambda claim: (claim[1][1] / claim[1][0], claim[0])):
        fair[name] = min(float(wanted), left * weight / weights)
        left -= fair[name]
        weights -= weight
    return fair
