"""Verdicts of rechecks and canaries on drawn measurements: how many are right, and how many measurements they take.

Simulated: no server runs. The logarithm of a measurement is the truth, the level of its round or pair, and normal
noise. The rule, the looks and the intervals are those of the program.

    python -m benchmarks.recheck_verdicts [--repeats 50] [--noise 0.02]
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass

from benchmarks.command_line import documented_parser
from tuner.scoring.change import EQUAL, MARGIN, Change, Promise, change_of
from tuner.scoring.compare import paired_ratio, residual_noise
from tuner.scoring.sequential import looks

LEVEL = 0.1
"""Standard deviation of the logarithm of a round's level, which all servers of the round share."""


@dataclass(frozen=True)
class Case:
    """A truth: the ratio of today, what was promised, and the rounds as the command's option gives them."""

    name: str
    truth: float
    promised: Promise
    rounds: int


CASES = (
    Case("recheck, gain as recorded", 1.30, Promise(1.30, 1.25, 1.35), 3),
    Case("recheck, gain 1.30 -> 1.10", 1.10, Promise(1.30, 1.25, 1.35), 3),
    Case("recheck, gain 1.30 -> 1.55", 1.55, Promise(1.30, 1.25, 1.35), 3),
    Case("two versions, equal", 1.0, EQUAL, 3),
    Case("two versions, 3 % slower", 0.97, EQUAL, 3),
    Case("two versions, 10 % slower", 0.90, EQUAL, 3),
    Case("two servers, equal", 1.0, EQUAL, 10),
    Case("two servers, 3 % slower", 1 / 1.03, EQUAL, 10),
    Case("two servers, 10 % slower", 1 / 1.10, EQUAL, 10),
)


def drawn(case: Case, noise: float, draw: random.Random) -> tuple[Change, int]:
    """Return the verdict of one sequence of rounds, and their number."""
    ends, cells = looks(case.rounds), dict[tuple[int, int], float]()
    found = Change.INCONCLUSIVE
    for round_ in range(ends[-1]):
        level = draw.gauss(0, LEVEL)
        cells |= {(arm, round_): level + arm * math.log(case.truth) + draw.gauss(0, noise) for arm in (0, 1)}
        if round_ + 1 in ends:
            differences = [cells[1, each] - cells[0, each] for each in range(round_ + 1)]
            ratio = paired_ratio(differences, residual_noise(cells), len(ends))
            found = change_of(ratio, case.promised, MARGIN)
            if found.is_known:
                return found, round_ + 1
    return found, ends[-1]


def main() -> None:
    """Print a line for each case and noise."""
    parser = documented_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.01, 0.02, 0.05])
    arguments = parser.parse_args()
    for noise in arguments.noise:
        for case in CASES:
            draw = random.Random(f"{case.name} {noise}")
            found = [drawn(case, noise, draw) for _ in range(arguments.repeats)]
            counts = Counter(verdict for verdict, _ in found)
            rounds = sorted(count for _, count in found)
            shown = ", ".join(f"{each.value} {counts[each]}" for each in Change if counts[each])
            middle = f"rounds median {rounds[len(rounds) // 2]}, most {rounds[-1]}"
            print(f"noise {noise:.0%}  {case.name:28} {shown}; {middle}")


if __name__ == "__main__":
    main()
