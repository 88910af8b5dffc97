"""The table that `loadgen.py` prints: a row a figure, a column a generator, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.loadgen.figures import COMPLETED, NO_RECORD, Dispersion, Faulty, Lateness, Result, Steady

DISPERSION = 0.05
LATE_P99_MS = 5.0

Cell = Callable[[Steady], str]


def print_table(results: Sequence[Result], cores: int) -> None:
    """Print every figure, with "met" or "not met" where there is a requirement."""
    print(f"{cores} cores\n")
    print(row("", [f"{result.name} {result.version}" for result in results]))
    print("|" + "---|" * (1 + len(results)))
    print(row("load average of the machine before", [f"{result.load_average:.1f}" for result in results]))
    for name, cell in STEADY_ROWS.items():
        cells = [result.steady_error or "" if result.steady is None else cell(result.steady) for result in results]
        print(row(name, cells))
    for name, told in FAULT_ROWS.items():
        print(row(name, ["; ".join(told(run) for run in result.faulty) for result in results]))
    for result in results:
        for run in result.faulty:
            print(f"\n{result.name}, {run.offered} requests with faults, {run.wall_s:.0f} s: {run.error or run.said}")


def row(name: str, cells: Sequence[str]) -> str:
    """Return a row of the table."""
    return f"| {' | '.join([name, *cells])} |"


def met(holds: bool) -> str:
    """Return the verdict on a requirement."""
    return "met" if holds else "not met"


def poisson(found: Sequence[Dispersion]) -> str:
    """Return the dispersion in the windows: the first within 0.05 of 1, the wider ones within three of their errors."""
    first, *wider = found
    holds = abs(first.value - 1.0) <= DISPERSION
    holds = holds and all(abs(each.value - 1.0) <= max(DISPERSION, 3.0 * each.error) for each in wider)
    return f"{', '.join(f'{each.value:.2f} ± {each.error:.2f}' for each in found)}: {met(holds)}"


def late(found: Lateness) -> str:
    """Return the three percentiles of a lateness."""
    return ", ".join("–" if each is None else f"{each:.1f}" for each in (found.p50_ms, found.p99_ms, found.max_ms))


def in_time(found: Lateness) -> str:
    """Return the percentiles and the verdict on the 99th."""
    return f"{late(found)}: {met(found.p99_ms is not None and found.p99_ms <= LATE_P99_MS)}"


def again(run: Steady) -> str:
    """Return whether workers draw the same stream."""
    return f"{run.gaps_again:.1f}: {met(run.gaps_again < 0.5)}"


def token_times(run: Steady) -> str:
    """Return how many token times a record has."""
    each = run.token_times / max(1, run.records)
    return f"{run.first_token_times}; {each:.1f} of 8"


STEADY_ROWS: dict[str, Cell] = {
    "10,000 offered: arrived / records": lambda run: (
        f"{run.arrivals} / {run.records}: {met(run.records == run.arrivals == 10_000)}"
    ),
    "scheduled times in its records": lambda run: met(run.told),
    "scheduled before the load began": lambda run: str(run.early),
    "dispersion of scheduled counts, windows of 1, 10, 100 gaps": lambda run: poisson(run.scheduled_dispersion),
    "dispersion of arrived counts, the same": lambda run: poisson(run.arrived_dispersion),
    "squared variation of gaps, scheduled / arrived": lambda run: f"{run.scheduled_gaps:.2f} / {run.arrived_gaps:.2f}",
    "a drawn gap comes again, times beyond chance": again,
    "duration of the arrivals by that of the schedule": lambda run: f"{run.span_ratio:.4f}",
    "sent late, p50, p99, max ms": lambda run: late(run.sent_late),
    "arrived late, p50, p99, max ms": lambda run: in_time(run.arrived_late),
    "records with a first token; token times a record": token_times,
    "processor time, s": lambda run: f"{run.cpu_s:.1f}",
    "wall-clock / until the first arrival, s": lambda run: f"{run.wall_s:.1f} / {run.first_s:.1f}",
}


def recorded(run: Faulty) -> str:
    """Return how many of the offered requests have a record."""
    return f"{run.records} of {run.offered}: {met(run.records == run.offered)}"


def told_faults(run: Faulty) -> str:
    """Return how many of the faults are told to be failures."""
    failed = sum(said not in (COMPLETED, NO_RECORD) for said in run.said.values())
    return f"{failed} of {len(run.said)}" if run.said else "–"


FAULT_ROWS: dict[str, Callable[[Faulty], str]] = {
    "requests with faults: ended by itself": lambda run: met(run.ended),
    "  records": recorded,
    "  faults that its records call failures": told_faults,
    "  failed after a first token, and its time kept": lambda run: f"{run.cut_off_with_first_token} of {run.cut_off}",
}
