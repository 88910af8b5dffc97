"""Prints the figures of load generators: a row for each figure, a column for each generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.loadgen.figures import (
    COMPLETED,
    NO_RECORD,
    Dispersion,
    FaultFigures,
    GeneratorFigures,
    Lateness,
    SteadyFigures,
)
from benchmarks.loadgen.records import RequestStream
from benchmarks.text_table import number_text

DISPERSION_TOLERANCE = 0.05
DISPERSION_ERRORS = 3.0
"""Standard errors that the dispersion in a wide window may be off 1."""
LATEST_P99_MS = 5.0
MOST_REPEATED_GAPS = 0.5


def print_generators(
    generators: Sequence[GeneratorFigures], steady: RequestStream, faulty: RequestStream, cores: int
) -> None:
    """Print every figure in Markdown, with "met" or "not met" where there is a requirement, then each fault's outcome.

    Args:
        generators: the figures.
        steady: the requests of the run without faults.
        faulty: the requests of the run with faults.
        cores: number of processor cores.
    """
    print(
        f"Load generators on {cores} cores: n = {steady.requests:,} requests at Poisson times, {steady.rate:g}/s, "
        f"{steady.output_tokens} tokens each;\nthen {faulty.requests} requests, {faulty.rate:g}/s, some with a fault\n"
    )
    print(_row("", [f"{each.name} {each.version}" for each in generators]))
    print("|" + "---|" * (1 + len(generators)))
    print(_row("load average of the machine before", [f"{each.load_average:.1f}" for each in generators]))
    for name, steady_cell in _steady_rows(steady).items():
        cells = [each.steady_error or "" if each.steady is None else steady_cell(each.steady) for each in generators]
        print(_row(name, cells))
    for name, fault_cell in FAULT_ROWS.items():
        print(_row(name, ["; ".join(fault_cell(run) for run in each.faulty) for each in generators]))
    for each in generators:
        for run in each.faulty:
            print(f"\n{each.name}, {run.offered} requests, {run.wall_s:.0f} s, by fault: {run.error or run.outcomes}")


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([name, *cells])} |"


def _verdict(holds: bool) -> str:
    return "met" if holds else "not met"


def _dispersion_text(indices: Sequence[Dispersion]) -> str:
    """Return the dispersions: the first must be near 1, the others near 1 or within their standard errors."""
    first, *wider = indices
    holds = abs(first.value - 1.0) <= DISPERSION_TOLERANCE and all(
        abs(each.value - 1.0) <= max(DISPERSION_TOLERANCE, DISPERSION_ERRORS * each.error) for each in wider
    )
    return f"{', '.join(f'{each.value:.2f} ± {each.error:.2f}' for each in indices)}: {_verdict(holds)}"


def _lateness_text(late: Lateness) -> str:
    return ", ".join(number_text(each, 1) for each in (late.p50_ms, late.p99_ms, late.max_ms))


def _lateness_verdict(late: Lateness) -> str:
    return f"{_lateness_text(late)}: {_verdict(late.p99_ms is not None and late.p99_ms <= LATEST_P99_MS)}"


def _steady_rows(stream: RequestStream) -> dict[str, Callable[[SteadyFigures], str]]:
    """Return the rows of a run without faults."""

    def count(run: SteadyFigures) -> str:
        return f"{run.arrivals} / {run.records}: {_verdict(run.records == run.arrivals == stream.requests)}"

    def token_times(run: SteadyFigures) -> str:
        return f"{run.first_token_times}; {run.token_times / max(1, run.records):.1f} of {stream.output_tokens}"

    def repeated(run: SteadyFigures) -> str:
        return f"{run.repeated_gaps:.1f}: {_verdict(run.repeated_gaps < MOST_REPEATED_GAPS)}"

    return {
        f"{stream.requests:,} offered: arrived / recorded": count,
        "records contain the scheduled times": lambda run: _verdict(run.schedule_recorded),
        "requests scheduled before the run began": lambda run: str(run.early),
        "dispersion of scheduled counts, windows of 1, 10, 100 gaps": lambda run: _dispersion_text(
            run.scheduled_dispersion
        ),
        "dispersion of arrived counts, same windows": lambda run: _dispersion_text(run.arrived_dispersion),
        "squared variation of gaps, scheduled / arrived": lambda run: (
            f"{run.scheduled_gaps:.2f} / {run.arrived_gaps:.2f}"
        ),
        "repetitions of a gap beyond chance": repeated,
        "duration of arrivals / of the schedule": lambda run: f"{run.span_ratio:.4f}",
        "sent late, p50, p99, max, ms": lambda run: _lateness_text(run.sent_late),
        "arrived late, p50, p99, max, ms": lambda run: _lateness_verdict(run.arrived_late),
        "records with a first token; token times per record": token_times,
        "processor time, s": lambda run: f"{run.cpu_s:.1f}",
        "wall-clock / until the first arrival, s": lambda run: f"{run.wall_s:.1f} / {run.first_s:.1f}",
    }


def _recorded_text(run: FaultFigures) -> str:
    return f"{run.records} of {run.offered}: {_verdict(run.records == run.offered)}"


def _failures_text(run: FaultFigures) -> str:
    failed = sum(outcome not in (COMPLETED, NO_RECORD) for outcome in run.outcomes.values())
    return f"{failed} of {len(run.outcomes)}" if run.outcomes else "–"


FAULT_ROWS: dict[str, Callable[[FaultFigures], str]] = {
    "requests with faults: the generator ends by itself": lambda run: _verdict(run.ended),
    "  requests with a record": _recorded_text,
    "  faults with a recorded error": _failures_text,
    "  requests cut off after a first token whose time is recorded": lambda run: (
        f"{run.cut_off_with_first_token} of {run.cut_off}"
    ),
}
