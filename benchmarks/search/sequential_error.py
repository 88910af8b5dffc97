"""Is the stated error of the finals' sequential test the true one? Simulated finals whose true scores are known.

    python -m benchmarks.search.sequential_error [--finals 10000] [--gains 0 0.02 0.05 0.1] [--seed 0] [--json FILE]

Each final has the defaults, three finalists of ten flags, and forms of each with six and three flags. Three flags of a
finalist bring its gain, and seven bring nothing; one of the three is lost in the smallest form. The noise is that of
real studies: launches differ by 0.5 to 3 %, one in twenty by three times as much, and the machine drifts by a random
walk of 0.3 % from measurement to measurement. The surrogate's posterior is centred on the truth with an error of 2 %,
twice as much as it states, and the finalists are the best of ten by it. `plan` chooses what is measured, as in a study;
the winner is better than the defaults if its interval is above 1.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.command_line import documented_parser, write_json
from benchmarks.text_table import print_table
from tuner.confidence import normal_factor
from tuner.scoring.compare import paired_ratio, residual_noise
from tuner.scoring.sequential import Arms, looks, plan, pooled

ROUNDS, MOST = 3, 30
FINALISTS, CONSIDERED = 3, 10
FLAGS = (10, 6, 3)
SURROGATE_ERROR = 0.02
DRIFT = 0.003
OUTLIERS, OUTLIER_FACTOR = 0.05, 3.0


@dataclass(frozen=True)
class SimulatedFinal:
    """One final: the true gain of the best finalist, whether a gain was claimed, the winner's, and the measurements."""

    gain: float
    claimed: bool
    true_gain: float
    loss: float
    measurements: int


def simulated_final(gain: float, random: np.random.Generator) -> SimulatedFinal:
    """Return the end of one final; `gain` is the mean logarithm of the finalists' scores."""
    whole = gain + 0.01 * (gain > 0) * random.standard_normal(CONSIDERED)
    believed = whole + SURROGATE_ERROR * random.standard_normal(CONSIDERED)
    chosen = np.argsort(-believed)[:FINALISTS]
    truth, beliefs, flags = [0.0], [0.0], [0]
    for place in chosen:
        for count in FLAGS:
            lost = gain / 3 if count == min(FLAGS) else 0.0
            truth.append(float(whole[place]) - lost)
            error = 0.0 if count == max(FLAGS) else SURROGATE_ERROR / 2 * random.standard_normal()
            beliefs.append(float(believed[place]) - lost + float(error))
            flags.append(count)
    size = len(truth)
    origin = np.array([-1, *np.repeat(np.arange(FINALISTS), len(FLAGS))])
    same = (origin[:, None] == origin[None, :]).astype(float)
    covariance = (SURROGATE_ERROR / 2) ** 2 * (0.9 * same + 0.1 * np.eye(size))
    known = np.isin(flags, max(FLAGS))
    origins = np.array([0, *np.repeat(np.flatnonzero(known), len(FLAGS))])
    alive, feasible = np.arange(size) > 0, np.ones(size)
    arms = Arms(np.array(flags), origins, np.array(beliefs), covariance, 0.02, alive, feasible, known, 0)
    return _play(arms, np.array(truth), random)


def _play(arms: Arms, truth: np.ndarray, random: np.random.Generator) -> SimulatedFinal:
    noise, level = math.exp(random.uniform(math.log(0.005), math.log(0.03))), 0.0
    rounds: list[dict[int, float]] = []
    spent = 0
    for done, following in zip((0, *looks(ROUNDS)), looks(ROUNDS), strict=False):
        found = plan(arms, rounds, _noise(arms, rounds))
        assert found is not None
        if done and found.settled and _score(arms, rounds, found.target) > 0:
            break
        group = found.arms[: (MOST - spent) // (following - done)]
        if len(group) < 2:
            break
        for turn in range(done, following):
            cells = {}
            for each in (*group[turn % len(group) :], *group[: turn % len(group)]):
                level += DRIFT * random.standard_normal()
                factor = OUTLIER_FACTOR if random.random() < OUTLIERS else 1.0
                cells[each] = float(truth[each] + level + factor * noise * random.standard_normal())
            rounds.append(cells)
            spent += len(group)
    return _end(arms, truth, rounds, spent)


def _end(arms: Arms, truth: np.ndarray, rounds: Sequence[dict[int, float]], spent: int) -> SimulatedFinal:
    found = plan(arms, rounds, _noise(arms, rounds))
    assert found is not None
    measured = {each for cells in rounds for each in cells} - {0}
    better = [each for each in measured if _score(arms, rounds, each) > 0]
    gain = float(truth[arms.known].max())
    if not better:
        return SimulatedFinal(gain, False, 0.0, gain, spent)
    best = min(better, key=lambda each: found.losses[each])
    as_good = [each for each in better if each == best or found.as_good[each]]
    winner = min(as_good, key=lambda each: (arms.flags[each], found.losses[each]))
    return SimulatedFinal(gain, True, float(truth[winner]), gain - float(truth[winner]), spent)


def _noise(arms: Arms, rounds: Sequence[dict[int, float]]) -> float:
    found = residual_noise({(each, turn): value for turn, cells in enumerate(rounds) for each, value in cells.items()})
    return arms.noise if found is None else pooled(found.deviation, found.degrees, arms.noise)


def _score(arms: Arms, rounds: Sequence[dict[int, float]], place: int) -> float:
    """Return the lower end of the interval of a configuration's gain, in logarithms."""
    cells = {(each, turn): value for turn, cells in enumerate(rounds) for each, value in cells.items()}
    differences = [cells[place] - cells[0] for cells in rounds if place in cells]
    comparisons = len({each for each, _ in cells} - {0}) * len(looks(ROUNDS))
    low = paired_ratio(differences, residual_noise(cells), comparisons).low if differences else None
    return -math.inf if low is None else math.log(low)


def _share(count: int, total: int) -> str:
    """Return a share with its 95 % interval (Wilson)."""
    z, share = normal_factor(), count / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return f"{100 * share:.2f} % [{100 * (centre - half):.2f}, {100 * (centre + half):.2f}]"


def check_sequential_error() -> None:
    """Simulate the finals and print the figures."""
    parser = documented_parser(__doc__)
    parser.add_argument("--finals", type=int, default=10_000, help="of each gain [10000]")
    parser.add_argument("--gains", type=float, nargs="+", default=[0.0, 0.02, 0.05, 0.1])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write every final to this file")
    arguments = parser.parse_args()
    rows, every = [], []
    for gain in arguments.gains:
        random = np.random.default_rng([arguments.seed, round(1e6 * gain)])
        finals = [simulated_final(gain, random) for _ in range(arguments.finals)]
        claimed = [each for each in finals if each.claimed]
        false = sum(each.true_gain <= 1e-9 for each in claimed)
        losses = [each.loss for each in claimed]
        every += finals
        rows.append(
            [
                f"{100 * gain:.0f} %",
                _share(false, len(finals)),
                _share(len(claimed), len(finals)),
                f"{100 * float(np.median(losses)):.1f} %" if losses else "",
                f"{100 * float(np.quantile(losses, 0.99)):.1f} %" if losses else "",
                f"{np.median([each.measurements for each in finals]):.0f}",
            ]
        )
    caption = (
        "Share of finals that export a configuration without a true gain (stated: at most 2.5 %) and that export one "
        "at all, with 95 % intervals; loss against the best finalist of those, median and 99th percentile; median of "
        f"measurements; n = {arguments.finals} finals a row"
    )
    print_table(caption, ["gain", "false claims", "exports", "loss", "99th", "measurements"], rows)
    write_json(arguments.json, [asdict(each) for each in every])


if __name__ == "__main__":
    check_sequential_error()
