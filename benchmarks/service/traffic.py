"""Made submissions: owners with weights, Poisson arrivals with bursts, and lognormal study lengths."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from storage.service.records import Owner

HOUR_S, DAY_S = 3_600.0, 86_400.0
DEVICES: Mapping[str, tuple[str, ...]] = {
    kind: tuple(f"{kind}-{number}" for number in range(4)) for kind in ("h100", "h200")
}
WEIGHTS: Mapping[str, float] = {"anna": 1.0, "ben": 1.0, "carla": 2.0, "dora": 4.0}
GPUS, GPUS_ODDS = (1, 2, 3, 4), (0.45, 0.25, 0.1, 0.2)
RIGID_ODDS = 0.25
"""Share of submissions that start with all their devices or not at all."""
WORK_MEDIAN_S, WORK_SIGMA = 1_200.0, 1.0
"""GPU-seconds of a study: median, and standard deviation of the logarithm."""
BACKLOG = 400
"""Submissions of each owner at the beginning of `backlogged`."""
SMALL_LOAD = 0.5
"""Share of all devices that each owner of small studies asks for in `big_among_small`."""
TRIAL_MEDIAN_S, TRIAL_SIGMA, TRIAL_MOST_S = 180.0, 0.5, 900.0
BURST_ODDS, BURST_SIZES = 0.04, (5, 25)
MEAN_BURST = 1 + BURST_ODDS * (sum(BURST_SIZES) / 2 - 1)
MEAN_WORK_S = WORK_MEDIAN_S * math.exp(WORK_SIGMA**2 / 2)


@dataclass(frozen=True, slots=True)
class Study:
    """A made submission.

    Attributes:
        id: its name.
        owner: who asks.
        kind: kind of the devices.
        gpus: most devices.
        least_gpus: fewest devices.
        priority: among the owner's own.
        submitted_s: when it is submitted.
        work_s: GPU-seconds of all its trials.
        trial_s: length of a trial; at its end the study can yield.
    """

    id: str
    owner: str
    kind: str
    gpus: int
    least_gpus: int
    priority: int
    submitted_s: float
    work_s: float
    trial_s: float


def weighted_owners(most_gpus: Mapping[str, int], week_hours: Mapping[str, float]) -> list[Owner]:
    """Return the owners with their weights and these quotas."""
    return [Owner(name, weight, most_gpus.get(name), week_hours.get(name)) for name, weight in WEIGHTS.items()]


class MadeTraffic:
    """Makes submissions; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.studies: list[Study] = []

    def add(self, owner: str, at_s: float, gpus: int | None = None, rigid: bool | None = None) -> None:
        """Add a submission of random size and length.

        Args:
            owner: who asks.
            at_s: when.
            gpus: number of devices; None: random.
            rigid: whether it needs all of them; None: random.
        """
        rng = self._random
        gpus = gpus or rng.choices(GPUS, GPUS_ODDS)[0]
        rigid = rng.random() < RIGID_ODDS if rigid is None else rigid
        trial_s = min(rng.lognormvariate(math.log(TRIAL_MEDIAN_S), TRIAL_SIGMA), TRIAL_MOST_S)
        work_s = max(rng.lognormvariate(math.log(WORK_MEDIAN_S), WORK_SIGMA), gpus * trial_s)
        kind, priority = rng.choice(sorted(DEVICES)), rng.choices((0, 1), (9, 1))[0]
        name = f"{owner}-{len(self.studies):05}"
        self.studies.append(Study(name, owner, kind, gpus, gpus if rigid else 1, priority, at_s, work_s, trial_s))

    def add_arrivals(self, owner: str, load: float, until_s: float) -> None:
        """Add arrivals of an owner that ask for a share `load` of all devices, some of them in bursts."""
        devices = sum(map(len, DEVICES.values()))
        gap_s = MEAN_WORK_S * MEAN_BURST / (load * devices)
        at_s = self._random.expovariate(1 / gap_s)
        while at_s < until_s:
            for _ in range(self._random.randint(*BURST_SIZES) if self._random.random() < BURST_ODDS else 1):
                self.add(owner, at_s)
            at_s += self._random.expovariate(1 / gap_s)


def backlogged(seed: int, until_s: float) -> Sequence[Study]:
    """Return traffic in which every owner asks for more than a fair share all the time."""
    traffic = MadeTraffic(seed)
    total = sum(WEIGHTS.values())
    for owner, weight in WEIGHTS.items():
        for _ in range(BACKLOG):
            traffic.add(owner, 0.0)
        traffic.add_arrivals(owner, 2.0 * weight / total + 0.3, until_s)
    return traffic.studies


def usual(seed: int, until_s: float, load: float) -> Sequence[Study]:
    """Return traffic of all owners in equal parts that asks for a share `load` of the devices."""
    traffic = MadeTraffic(seed)
    for owner in WEIGHTS:
        traffic.add_arrivals(owner, load / len(WEIGHTS), until_s)
    return traffic.studies


def big_among_small(seed: int, until_s: float) -> Sequence[Study]:
    """Return traffic of three owners with studies of one device, more than fit, and big ones of the fourth.

    Every two hours `anna` submits a study that needs all four devices of a kind.
    """
    traffic = MadeTraffic(seed)
    devices = sum(map(len, DEVICES.values()))
    for owner in ("ben", "carla", "dora"):
        at_s = 0.0
        while at_s < until_s:
            traffic.add(owner, at_s, gpus=1)
            at_s += MEAN_WORK_S / devices / SMALL_LOAD
    for number in range(1, int(until_s / (2 * HOUR_S))):
        traffic.add("anna", number * 2 * HOUR_S, gpus=4, rigid=True)
    return traffic.studies
