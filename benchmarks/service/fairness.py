"""Is the queue fair? Its policy decides over made traffic on a virtual clock; every figure is simulated.

    python -m benchmarks.service.fairness [--seeds 5] [--first-seed 1] [--days 1] [--long-days 7] [--json FILE]

Four owners with the weights 1, 1, 2 and 4 share four devices of each of two kinds. Studies ask for one to four devices,
a quarter of them for all or none. Their GPU-seconds are lognormal (median 20 minutes), and so are their trials (median
3 minutes). A study that yields ends at the end of its trial; each run begins with 30 s of the driver's start.

Four kinds of traffic: `backlogged`, in which every owner always waits, `usual`, which asks for 85 % of the devices with
bursts, `quotas`, the same with at most two devices for ben and 30 GPU-hours a week for anna, and `big among small`, in
which one owner needs all devices of a kind every two hours while the others' studies of one device ask for 1.5 times
what exists. `--days` is the length of the first and the last one, `--long-days` that of the others. Decisions are timed
on views with up to 10,000 waiting submissions, 50 owners and 64 devices, in processor time.
"""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command_line import documented_parser, write_json
from benchmarks.service.simulation import Outcome, Simulation
from benchmarks.service.traffic import (
    DAY_S,
    DEVICES,
    HOUR_S,
    WEIGHTS,
    Study,
    backlogged,
    big_among_small,
    usual,
    weighted_owners,
)
from benchmarks.text_table import print_table
from tuner.service.queue.policy import decide
from tuner.service.queue.view import OwnerShare, QueueView, Running, Waiting

LOAD = 0.85
MOST_GPUS, WEEK_HOURS = {"ben": 2}, {"anna": 30.0}
TIMED = (100, 1_000, 10_000)
TIMED_DECISIONS, TIMED_OWNERS, TIMED_DEVICES, TIMED_RUNS = 30, 50, 32, 28
SHARE_CAPTION = (
    "Shares of the used GPU-seconds in `backlogged` traffic over n = {seeds} seeds of {days:g} d: the mean and the "
    "largest deviation from the weight's share, in % of it (at most 5 is fair)"
)
TRAFFIC_CAPTION = (
    "What happened, over n = {seeds} seeds. Sums over the seeds: studies, yields, violations. Means: busy devices and "
    "starts of drivers, in % of all GPU-seconds. Longest: wait until the first start of a study, and time in which an "
    "owner without quotas waited and had no device of the kind, in h"
)
TIME_CAPTION = "Processor time of one decision with 50 owners and 2 x 32 devices, in ms (lower is better), n = {n}"


@dataclass(frozen=True)
class Traffic:
    """A kind of traffic: its name, its length in seconds, its submissions by seed, and the owners' quotas."""

    name: str
    until_s: float
    make: Callable[[int], Sequence[Study]]
    most_gpus: Mapping[str, int]
    week_hours: Mapping[str, float]


def kinds_of_traffic(days: float, long_days: float) -> list[Traffic]:
    """Return the kinds of traffic; `days` is the length of those in which devices are always short."""
    short_s, long_s = days * DAY_S, long_days * DAY_S
    return [
        Traffic("backlogged", short_s, lambda seed: backlogged(seed, short_s), {}, {}),
        Traffic("usual", long_s, lambda seed: usual(seed, long_s, LOAD), {}, {}),
        Traffic("quotas", long_s, lambda seed: usual(seed, long_s, LOAD), MOST_GPUS, WEEK_HOURS),
        Traffic("big among small", short_s, lambda seed: big_among_small(seed, short_s), {}, {}),
    ]


def deviations(outcome: Outcome) -> dict[str, float]:
    """Return the relative deviation of each owner's share of the used GPU-seconds from that of the weight."""
    used_s, weights = sum(outcome.use_s.values()), sum(WEIGHTS.values())
    return {name: outcome.use_s[name] / used_s / (weight / weights) - 1 for name, weight in WEIGHTS.items()}


def share_rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Return a row for each owner."""
    found = [deviations(outcome) for outcome in outcomes]
    return [
        [
            name,
            f"{weight:g}",
            f"{100 * weight / sum(WEIGHTS.values()):.1f}",
            f"{100 * statistics.mean(each[name] for each in found):+.1f}",
            f"{100 * max((each[name] for each in found), key=abs):+.1f}",
        ]
        for name, weight in WEIGHTS.items()
    ]


def traffic_row(traffic: Traffic, outcomes: Sequence[Outcome], submitted: int) -> list[str]:
    """Return the row of one kind of traffic."""
    all_s = sum(map(len, DEVICES.values())) * traffic.until_s
    waits_s = [wait_s for outcome in outcomes for wait_s in (*outcome.waits_s.values(), *outcome.unstarted_s.values())]
    return [
        traffic.name,
        f"{traffic.until_s / DAY_S:g}",
        str(submitted),
        str(sum(outcome.finished for outcome in outcomes)),
        f"{100 * statistics.mean(outcome.busy_s / all_s for outcome in outcomes):.1f}",
        f"{100 * statistics.mean(outcome.start_s / all_s for outcome in outcomes):.1f}",
        str(sum(outcome.yields for outcome in outcomes)),
        f"{max(waits_s) / HOUR_S:.1f}",
        f"{max(outcome.longest_without_s for outcome in outcomes) / HOUR_S:.1f}",
        str(sum(outcome.violations for outcome in outcomes)),
    ]


def big_waits_s(studies: Sequence[Study], outcome: Outcome) -> list[float]:
    """Return the waits of the studies that need all devices of a kind, in seconds."""
    waits_s = {**outcome.unstarted_s, **outcome.waits_s}
    return [waits_s[study.id] for study in studies if study.least_gpus == 4 and study.id in waits_s]


def made_view(waiting: int, seed: int) -> QueueView:
    """Return a view with so many waiting submissions, for timing."""
    rng = random.Random(seed)
    names = [f"owner-{number}" for number in range(TIMED_OWNERS)]
    owners = {
        name: OwnerShare(
            rng.choice((1.0, 2.0, 4.0)),
            {kind: rng.uniform(0, 50 * HOUR_S) for kind in DEVICES},
            rng.uniform(0, 20 * HOUR_S),
            rng.choice((None, 4, 16)),
            rng.choice((None, 60.0)),
        )
        for name in names
    }
    devices = {kind: tuple(f"{kind}-{number}" for number in range(TIMED_DEVICES)) for kind in DEVICES}
    running = tuple(
        Running(f"{kind}-run-{number}", rng.choice(names), kind, (device,), -rng.uniform(0, 4 * HOUR_S))
        for kind, own in devices.items()
        for number, device in enumerate(own[:TIMED_RUNS])
    )
    submissions = []
    for number in range(waiting):
        gpus, age_s = rng.randint(1, 8), rng.uniform(0, 10 * HOUR_S)
        least = rng.choice((1, 1, 1, gpus))
        owner, kind = rng.choice(names), rng.choice(sorted(DEVICES))
        submissions.append(Waiting(f"s{number}", owner, kind, gpus, -age_s, -age_s, least, rng.randrange(3)))
    return QueueView(0.0, tuple(submissions), running, owners, devices)


def decision_times_s(waiting: int) -> list[float]:
    """Return the processor seconds of decisions over views with so many waiting submissions."""
    times_s = []
    for seed in range(TIMED_DECISIONS):
        view = made_view(waiting, seed)
        begun_s = time.process_time()
        decide(view)
        times_s.append(time.process_time() - begun_s)
    return times_s


def time_rows(times_s: Mapping[int, Sequence[float]]) -> list[list[str]]:
    """Return a row for each number of waiting submissions."""
    return [
        [
            str(waiting),
            f"{1000 * statistics.median(each):.1f}",
            f"{1000 * max(each):.1f}",
            f"{len(each) / sum(each):.0f}",
        ]
        for waiting, each in times_s.items()
    ]


def simulate(traffic: Traffic, seeds: Sequence[int]) -> tuple[list[Outcome], list[Sequence[Study]]]:
    """Return what happened with each seed, and its submissions."""
    owners = weighted_owners(traffic.most_gpus, traffic.week_hours)
    studies = [traffic.make(seed) for seed in seeds]
    return [Simulation(each, owners, DEVICES).run(traffic.until_s) for each in studies], studies


def measure_fairness() -> None:
    """Simulate everything and print the tables."""
    parser = documented_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds [5]")
    parser.add_argument("--first-seed", type=int, default=1, help="the first seed [1]")
    parser.add_argument("--days", type=float, default=1.0, help="length of traffic that always waits [1]")
    parser.add_argument("--long-days", type=float, default=7.0, help="length of the other traffic [7]")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    data, rows = {}, []
    for traffic in kinds_of_traffic(options.days, options.long_days):
        outcomes, studies = simulate(traffic, seeds)
        data[traffic.name] = [vars(outcome) for outcome in outcomes]
        rows.append(traffic_row(traffic, outcomes, sum(map(len, studies))))
        print_details(traffic, outcomes, studies, options.days)
    header = ["traffic", "days", "studies", "ended", "busy", "starts", "yields", "wait", "no device", "violations"]
    print_table(TRAFFIC_CAPTION.format(seeds=len(seeds)), header, rows)
    times_s = {waiting: decision_times_s(waiting) for waiting in TIMED}
    print_table(
        TIME_CAPTION.format(n=TIMED_DECISIONS), ["waiting", "median", "longest", "decisions/s"], time_rows(times_s)
    )
    write_json(options.json, {"traffic": data, "decisions_s": times_s})


def print_details(
    traffic: Traffic, outcomes: Sequence[Outcome], studies: Sequence[Sequence[Study]], days: float
) -> None:
    """Print what only one kind of traffic shows."""
    if traffic.name == "backlogged":
        caption = SHARE_CAPTION.format(seeds=len(outcomes), days=days)
        print_table(caption, ["owner", "weight", "share, %", "mean", "largest"], share_rows(outcomes))
        together = statistics.mean(outcome.all_waiting_s / traffic.until_s for outcome in outcomes)
        print(f"  all owners waited for both kinds in {100 * together:.1f} % of the time")
    if traffic.name == "quotas":
        most_h = max(outcome.most_week_hours["anna"] for outcome in outcomes)
        print(f"\nquotas: anna used at most {most_h:.2f} of {WEEK_HOURS['anna']:g} GPU-hours in seven days")
    if traffic.name == "big among small":
        waits_s = [
            wait_s for made, outcome in zip(studies, outcomes, strict=True) for wait_s in big_waits_s(made, outcome)
        ]
        if waits_s:
            median, longest = statistics.median(waits_s) / HOUR_S, max(waits_s) / HOUR_S
            print(f"\nbig studies: n = {len(waits_s)}, wait {median:.1f} h in the median and {longest:.1f} h at most")


if __name__ == "__main__":
    measure_fairness()
