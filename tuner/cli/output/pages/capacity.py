"""The output of `tuner capacity`."""

from __future__ import annotations

import json
import os
import sys

from storage.records import Phase, Provenance
from tuner.cli.output.progress.opening import simulation_line
from tuner.engines.base import EngineInfo
from tuner.errors import EXIT_OURS
from tuner.results import text
from tuner.use_cases.capacity import CapacityResult


class CapacityProgress:
    """Writes what is simulated, and a line for each phase and each rate, on standard error."""

    def __init__(self) -> None:
        self._rates = 0

    def opened(self, engine: EngineInfo, hardware: str) -> None:
        """Write that the capacity is simulated, if it is."""
        if engine.provenance is Provenance.SIMULATED:
            _say(simulation_line(engine, hardware))

    def phase(self, phase: Phase) -> None:
        """Write the phase."""
        self._rates += phase is Phase.BENCHMARK
        _say(f"rate {self._rates} …" if phase is Phase.BENCHMARK else f"{phase} …")


def report(result: CapacityResult, *, as_json: bool) -> int:
    """Print the capacity and return the exit code."""
    outcome = result.outcome
    if outcome.failure is not None:
        _say(f"failed: {outcome.failure.kind}: {outcome.failure.message}; logs are in {result.folder}")
        return EXIT_OURS
    if as_json:
        print(json.dumps(_document(result)))
        return 0
    sys.stdout.write(result.rates)
    slos = ", ".join(str(slo) for slo in result.slos)
    measured = [value for value in result.searches if value is not None]
    if len(measured) < len(result.searches):
        print(f"every rate that was tried missed an SLO: {slos}")
        return 0
    each = f" ({', '.join(text.number(value) for value in measured)})" if len(measured) > 1 else ""
    least = "at least " if result.is_lower_bound else ""
    print(f"capacity {least}{text.number(outcome.metric('capacity'))} req/s{each} ({outcome.provenance}): {slos}")
    return 0


def _document(result: CapacityResult) -> dict[str, object]:
    return {
        "capacity": result.outcome.metric("capacity"),
        "searches": result.searches,
        "lower_bound": result.is_lower_bound,
        "provenance": str(result.outcome.provenance),
        "slos": [str(slo) for slo in result.slos],
        "folder": os.fspath(result.folder),
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
