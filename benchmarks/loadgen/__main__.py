"""Which load generator sends requests on time and records each of them? The server is a fake; vLLM is not needed.

    python -m benchmarks.loadgen [--vllm VENV/bin/vllm] [--aiperf VENV/bin/aiperf] [--guidellm VENV/bin/guidellm]
        [--tokenizer FOLDER] [--only NAME] [--json FILE]

The generators run one after another against `tests/fakes/streaming_server.py` on the same cores:

1. 10,000 requests at Poisson times, 200 per second, 8 tokens each: dispersion of the arrivals, lateness and processor
   time. Processor time is that of every process that the generator starts, without the server's.
2. 300 requests, 20 per second. Eight have a fault each. A generator with a limit for a request gives it up after 10 s.
   Two requests stall: an early one, and the last one to end. A generator that still runs 40 s after the server
   received the last request is stopped, and runs again without stalls.

Lateness is the n-th arrival in the server's log minus the n-th scheduled time. If a generator does not record its
schedule, the schedule is drawn again from its seed; the request with the least delay sets its origin. Run this on an
idle machine, with more than two cores under `taskset -c 0,1`. The exit code is always 0.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.command_line import documented_parser, write_json
from benchmarks.loadgen.figures import FaultFigures, GeneratorFigures, fault_figures, steady_figures
from benchmarks.loadgen.generators import (
    AiPerfGenerator,
    GuideLlmGenerator,
    LoadGenerator,
    TunerGenerator,
    VllmGenerator,
)
from benchmarks.loadgen.records import GeneratorRun, RequestStream
from benchmarks.loadgen.runs import run_generator
from benchmarks.loadgen.table import print_generators

STEADY_STREAM = RequestStream(requests=10_000, rate=200.0, poisson=True, output_tokens=8, timeout_s=30.0)
FAULTY_STREAM = RequestStream(requests=300, rate=20.0, poisson=False, output_tokens=8, timeout_s=10.0)
FAULT_KINDS = ("stall", "reset", "half", "short", "malformed", "429", "500")
FAULTS = {str(10 + 20 * place): kind for place, kind in enumerate(FAULT_KINDS)} | {
    str(FAULTY_STREAM.requests - 5): "stall"
}
"""For the number of an arrival, the kind of its fault."""
UNREADABLE = (OSError, ValueError, LookupError)
"""What reading a missing or partial result raises."""
ERROR_TAIL = 120
"""Characters of an error that are reported."""


def compare_generators() -> None:
    """Run the generators and print their figures."""
    parser = documented_parser(__doc__)
    for name in ("vllm", "aiperf", "guidellm"):
        parser.add_argument(f"--{name}", type=Path, help="its executable; without it, the generator is left out")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer's folder; every generator but tuner needs it")
    parser.add_argument("--only", help="run only the generator of this name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    arguments = parser.parse_args()
    figures = [generator_figures(each) for each in given_generators(arguments)]
    cores = len(os.sched_getaffinity(0))
    print_generators(figures, STEADY_STREAM, FAULTY_STREAM, cores)
    write_json(arguments.json, {"cores": cores, "results": [asdict(each) for each in figures]})


def given_generators(arguments: argparse.Namespace) -> list[LoadGenerator]:
    """Return the generators that the command line names; print which are left out."""
    given: list[LoadGenerator] = [TunerGenerator(Path(sys.executable), arguments.tokenizer)]
    for kind, program in (
        (VllmGenerator, arguments.vllm),
        (AiPerfGenerator, arguments.aiperf),
        (GuideLlmGenerator, arguments.guidellm),
    ):
        if program is None or arguments.tokenizer is None:
            print(f"{kind.name} is left out: it needs --{kind.package} and --tokenizer", file=sys.stderr)
        else:
            given.append(kind(program.absolute(), arguments.tokenizer.absolute()))
    return [each for each in given if arguments.only in (None, each.name)]


def generator_figures(generator: LoadGenerator) -> GeneratorFigures:
    """Run a generator without and with faults, and again without stalls if it does not end."""
    figures = GeneratorFigures(generator.name, generator.version(), os.getloadavg()[0])
    with tempfile.TemporaryDirectory(prefix="tuner-loadgen-") as name:
        folder = Path(name)
        run = run_generator(generator, STEADY_STREAM, {}, folder / "steady")
        try:
            figures.steady = steady_figures(generator.read(STEADY_STREAM, folder / "steady", run.arrivals), run)
        except UNREADABLE as error:
            figures.steady_error = _error_text(run, error)
        figures.faulty.append(_run_with_faults(generator, FAULTS, folder / "faulty"))
        if not figures.faulty[-1].ended:
            without_stalls = {number: kind for number, kind in FAULTS.items() if kind != "stall"}
            figures.faulty.append(_run_with_faults(generator, without_stalls, folder / "without-stalls"))
    return figures


def _run_with_faults(generator: LoadGenerator, faults: dict[str, str], folder: Path) -> FaultFigures:
    run = run_generator(generator, FAULTY_STREAM, faults, folder)
    try:
        result = generator.read(FAULTY_STREAM, folder, run.arrivals)
        return fault_figures(result, run, FAULTY_STREAM.requests, faults)
    except UNREADABLE as error:
        return FaultFigures(FAULTY_STREAM.requests, 0, run.ended, run.wall_s, error=_error_text(run, error))


def _error_text(run: GeneratorRun, error: Exception) -> str:
    """Return why a run has no result."""
    return f"exit code {run.exit_code}, {type(error).__name__}: {str(error).strip()[-ERROR_TAIL:]}"


if __name__ == "__main__":
    compare_generators()
