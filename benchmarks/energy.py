"""Compare a GPU's energy counter with its power, integrated over time, while a load of yours runs.

    python -m benchmarks.energy --gpu 0 --seconds 60

Start a load on the GPU, such as `tuner load`, then this program. It reads the counter at the start and at the end, and
the power every 50 ms, and prints both energies and their ratio, which should lie between 0.95 and 1.05. From Ampere on,
NVML's power is an average over a second, so that a load that begins or ends during a short run spoils the ratio.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.command_line import documented_parser, write_json
from tuner import gpu

PERIOD_S = 0.05
"""Seconds between two samples of the power."""


@dataclass(frozen=True)
class EnergyComparison:
    """The energy of one run by the counter and by the power, in joules, and the run's length in seconds.

    `mean_w` is the mean power in watts, `samples` the number of its samples.
    """

    counter_j: float
    power_j: float
    seconds: float
    mean_w: float
    samples: int

    @property
    def ratio(self) -> float:
        """The counter's energy relative to that of the power."""
        return self.counter_j / self.power_j


def integrate(samples: Sequence[tuple[float, float]]) -> float:
    """Return the energy in joules of samples (seconds, watts), by the trapezoidal rule."""
    pairs = itertools.pairwise(samples)
    return sum((after - before) * (first + second) / 2 for (before, first), (after, second) in pairs)


def compare(
    index: int,
    seconds: float,
    energy_j: Callable[[int], float | None] = gpu.energy_j,
    power_w: Callable[[int], float | None] = gpu.power_w,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> EnergyComparison:
    """Sample a GPU for some seconds.

    Args:
        index: of the GPU, as NVML numbers them.
        seconds: of the run.
        energy_j: returns the counter.
        power_w: returns the present power.
        now: the clock.
        sleep: waits for some seconds.

    Raises:
        SystemExit: if the GPU has no counter, or its power cannot be read.
    """
    begun, first = now(), energy_j(index)
    samples: list[tuple[float, float]] = []
    while True:
        power = power_w(index)
        if power is None or first is None:
            raise SystemExit(f"GPU {index} has no energy counter or power reading; see `nvidia-smi`")
        samples.append((now(), power))
        if samples[-1][0] - begun >= seconds:
            break
        sleep(PERIOD_S)
    last = energy_j(index)
    if last is None:
        raise SystemExit(f"GPU {index} stopped answering; see `nvidia-smi`")
    spent, power_j = samples[-1][0] - samples[0][0], integrate(samples)
    return EnergyComparison(last - first, power_j, spent, power_j / spent, len(samples))


def main() -> None:
    """Compare and print."""
    parser = documented_parser(__doc__)
    parser.add_argument("--gpu", type=int, default=0, help="index of the GPU [0]")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the run [60]")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    found = compare(options.gpu, options.seconds)
    print(f"measured on GPU {options.gpu} in {found.seconds:.1f} s, {found.samples} samples")
    print(f"counter            {found.counter_j:12,.1f} J")
    print(f"power x time       {found.power_j:12,.1f} J, {found.mean_w:.1f} W on average")
    print(f"counter / power    {found.ratio:12.4f}")
    write_json(options.json, {**asdict(found), "ratio": found.ratio})


if __name__ == "__main__":
    main()
