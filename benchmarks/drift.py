"""How soon does `tuner server drift` find that recorded traffic has changed, and how often is it wrong on calm days?

    python -m benchmarks.drift BEFORE AFTER [--unit s] [--window 300] [--days 200] [--seed 0] [--json FILE]

BEFORE and AFTER are recorded traces. What is promised are the lengths of BEFORE's first half, and its highest rate of a
window. The watch sees BEFORE's second half, then AFTER, in windows as vLLM's `/metrics` would count them. Calm days of
24 hours are drawn in two ways: requests of BEFORE's first half, as many in each window as a Poisson process has, and
whole windows of BEFORE's second half, which also differ as a real hour does, but follow one another at random.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.command_line import documented_parser, write_json
from tuner.scoring.drift import Deviation, DriftWatch, Histogram, Promise, Window
from tuner.workloads.traces.formats import read_recording

EDGES = (*(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5)), float("inf"))
"""Of vLLM's histograms of tokens (`build_1_2_5_buckets`)."""

Request = tuple[float, int, int]
"""Seconds, and tokens of prompt and answer."""


def requests_of(file: Path, unit: str | None) -> list[Request]:
    """Return the requests of a trace, from time 0."""
    recording = read_recording(file)
    times = recording.times_s(unit)  # type: ignore[arg-type]
    lengths = [(each.input_tokens, each.output_tokens) for each in recording.requests]
    return [(at - times[0], *each) for at, each in zip(times, lengths, strict=True)]


def windows_of(requests: Sequence[Request], seconds: float) -> list[Window]:
    """Return the whole windows of some requests."""
    begin = requests[0][0]
    groups: list[list[Request]] = [[] for _ in range(int((requests[-1][0] - begin) // seconds))]
    for each in requests:
        place = int((each[0] - begin) // seconds)
        if place < len(groups):
            groups[place].append(each)
    return [
        Window(seconds, len(group), {"prompt": _histogram(group, 1), "answer": _histogram(group, 2)})
        for group in groups
        if group
    ]


def _histogram(group: Sequence[Request], column: int) -> Histogram:
    places = np.searchsorted(EDGES, [each[column] for each in group])
    return Histogram(EDGES, tuple(np.bincount(places, minlength=len(EDGES)).tolist()))


def _drawn(requests: Sequence[Request], random: np.random.Generator, rate: float, seconds: float) -> Window:
    """Return a window of requests that are drawn with replacement."""
    count = int(random.poisson(rate * seconds))
    group = [requests[place] for place in random.integers(len(requests), size=count)]
    return Window(seconds, count, {"prompt": _histogram(group, 1), "answer": _histogram(group, 2)})


def found_after(watch: DriftWatch, windows: Sequence[Window]) -> tuple[int | None, list[Deviation]]:
    """Return the number of windows after which something has drifted, and what; None if nothing has."""
    for number, window in enumerate(windows, start=1):
        if found := watch.add(window):
            return number, found
    return None, []


def measure_drift() -> None:
    """Print when the change is found, and the share of days with a false alarm."""
    parser = documented_parser(__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--unit", help="unit of the traces' times, where the format does not tell")
    parser.add_argument("--window", type=float, default=300.0, help="seconds [300]")
    parser.add_argument("--days", type=int, default=200, help="without a change [200]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    before = requests_of(given.before, given.unit)
    middle = before[-1][0] / 2
    first, second = ([each for each in before if (each[0] < middle) is half] for half in (True, False))
    after, calm = windows_of(requests_of(given.after, given.unit), given.window), windows_of(second, given.window)
    rate = max(window.requests / given.window for window in windows_of(before, given.window))
    promise = Promise(rate, {"prompt": sorted(each[1] for each in first), "answer": sorted(each[2] for each in first)})
    watch = DriftWatch(promise)
    early, _ = found_after(watch, calm)
    number, found = found_after(watch, after)
    random, count = np.random.default_rng(given.seed), int(86_400 // given.window)
    alarms = {"requests": 0, "windows": 0}
    for _ in range(given.days):
        made = [_drawn(first, random, len(first) / middle, given.window) for _ in range(count)]
        replayed = [calm[place] for place in random.integers(len(calm), size=count)]
        alarms["requests"] += found_after(DriftWatch(promise), made)[0] is not None
        alarms["windows"] += found_after(DriftWatch(promise), replayed)[0] is not None
    minutes = None if number is None else number * given.window / 60
    print(f"before the change: {len(calm)} windows, {'no alarm' if early is None else f'an alarm after {early}'}")
    print(f"after the change: found after {minutes} minutes, by {', '.join(each.name for each in found) or 'nothing'}")
    for name, number_of in alarms.items():
        print(f"false alarms: {number_of} of {given.days} days of 24 h of drawn {name}")
    write_json(given.json, {"minutes": minutes, "early": early, "alarms": alarms, "days": given.days})


if __name__ == "__main__":
    measure_drift()
