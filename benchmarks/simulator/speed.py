"""Measures the simulator's speed and memory, and the wall-clock time of a simulated study.

    python -m benchmarks.simulator.speed [--repeats 9]

It measures one trial of the default workload, 10,000 requests of 512 + 512 tokens, the time per engine step and the
memory for 1,000 to 8,000 requests, and a study of 60 trials with MLflow and the exported script. It prints medians and
exits with 0 whatever they are.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.command_line import documented_parser
from benchmarks.simulator.bench_serve import BenchServeWorkload, bench_serve_client
from search_spaces import hardware_named, known_models
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.serve_config import resolve_serve_config

GREEDY_SUFFIX = (
    *("--override-generation-config", '{"temperature": 0}'),
    *("--speculative-config", '{"method": "suffix"}'),
)


def simulate_trial(workload: BenchServeWorkload, card: str, *arguments: str) -> int:
    """Simulate a workload from the command line to its metrics; return the number of engine steps."""
    version, packages = ((0, 15, 1), {"flashinfer"}) if card == "t4" else ((0, 25, 1), set[str]())
    model, packages = known_models()["Qwen/Qwen2.5-0.5B"], {*packages, "arctic_inference"}
    config = resolve_serve_config(arguments, {}, model, hardware_named(card), version, frozenset(packages))
    server = ConfiguredServer(config, parameters_of(card))
    run = server.run(bench_serve_client(workload, 0.0015), 1)
    run.bench_metrics((50, 90, 95, 99))
    return run.trace.steps


def measure(repeats: int, work: Callable[[], int]) -> tuple[float, float, float, int]:
    """Return the median, fastest and slowest seconds after one unmeasured run, and the number of steps."""
    steps = work()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds), min(seconds), max(seconds), steps


def time_study() -> tuple[float, str]:
    """Run a study of 60 trials in an empty folder; return its seconds and the line of its output about time."""
    with tempfile.TemporaryDirectory(prefix="tuner-simulator-") as folder:
        command = [sys.executable, "-m", "tuner.cli.main", "optimize"]
        command += ["--trials", "60", "--engine", "simulated", "--plain"]
        started = time.perf_counter()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - started
        assert (Path(folder) / "best_serve.sh").is_file()
    return seconds, next(line for line in done.stdout.splitlines() if line.startswith("time") or "time on" in line)


def main() -> None:
    """Measure and print."""
    parser = documented_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    default = BenchServeWorkload(200, 50, 512, 512, seed=1)
    for name, arguments in (("default workload", ()), ("default workload, suffix decoding, greedy", GREEDY_SUFFIX)):
        median, fastest, slowest, steps = measure(repeats, partial(simulate_trial, default, "t4", *arguments))
        print(f"{name}: {median * 1000:.0f} ms ({fastest * 1000:.0f} to {slowest * 1000:.0f}), {steps} steps")
    large = BenchServeWorkload(10_000, 256, 512, 512, seed=1)
    median, fastest, slowest, steps = measure(3, lambda: simulate_trial(large, "h200"))
    print(f"10,000 requests of 512 + 512 tokens: {median:.2f} s ({fastest:.2f} to {slowest:.2f}), {steps} steps")
    for count in (1000, 2000, 4000, 8000):
        workload = BenchServeWorkload(count, 256, 512, 512, seed=1)
        median, _, _, steps = measure(3, partial(simulate_trial, workload, "h200"))
        tracemalloc.start()
        simulate_trial(workload, "h200")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(f"{count} requests: {steps} steps, {median / steps * 1e6:.1f} us a step, peak {peak / 2**20:.1f} MiB")
    seconds, line = time_study()
    print(f"a study of 60 trials with MLflow and the script: {seconds:.1f} s; {line}")


if __name__ == "__main__":
    main()
