"""How fast is the simulator, and where does a simulated study's time go?

    python -m benchmarks.simulator.speed [--repeats 9]

One trial of the default load; 10,000 requests of 512 + 512 tokens; the time of loads of 1,000 to 8,000 requests by
engine step and the memory that they take; a study of 60 trials with MLflow and the exported script, as a user starts
it. Prints medians, and exits 0 whatever they are.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

from search_spaces import hardware_named, known_models
from tuner.engines.simulator.clients.bench_serve import BenchServeWorkload, bench_serve_client
from tuner.engines.simulator.clients.metrics import bench_metrics
from tuner.engines.simulator.config.serve_config import resolve_serve_config
from tuner.engines.simulator.configured_server import ConfiguredServer
from tuner.engines.simulator.parameters import parameters_of

GREEDY_SUFFIX = (
    *("--override-generation-config", '{"temperature": 0}'),
    *("--speculative-config", '{"method": "suffix"}'),
)


def trial(load: BenchServeWorkload, card: str, *words: str) -> int:
    """Simulate a load from the command line to its metrics; return the engine's steps."""
    version, packages = ((0, 15, 1), {"flashinfer"}) if card == "t4" else ((0, 25, 1), set[str]())
    model = known_models()["Qwen/Qwen2.5-0.5B"]
    config = resolve_serve_config(
        words, {}, model, hardware_named(card), version, frozenset({*packages, "arctic_inference"})
    )
    machine = ConfiguredServer(config, parameters_of(card))
    run = machine.run(bench_serve_client(load, 0.0015), 1)
    bench_metrics(run.requests, run.received_s, config.stream_interval, machine.speculative, (50, 90, 95, 99))
    return run.trace.steps


def timed(repeats: int, work: Callable[[], int]) -> tuple[float, float, float, int]:
    """Return the median, fastest and slowest seconds of some runs after a first one, and what the work returned."""
    steps = work()
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds), min(seconds), max(seconds), steps


def study() -> tuple[float, str]:
    """Run a study of 60 trials in an empty folder; return its seconds and its last line but one."""
    with tempfile.TemporaryDirectory(prefix="tuner-simulator-") as folder:
        words = [
            sys.executable,
            "-m",
            "tuner.cli.main",
            "optimize",
            "--trials",
            "60",
            "--engine",
            "simulated",
            "--plain",
        ]
        begun = time.perf_counter()
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - begun
        assert (Path(folder) / "best_serve.sh").is_file()
    return seconds, next(line for line in done.stdout.splitlines() if line.startswith("time") or "time on" in line)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    default = BenchServeWorkload(200, 50, 512, 512, seed=1)
    for name, words in (("default load", ()), ("default load, suffix decoding, greedy", GREEDY_SUFFIX)):
        median, least, most, steps = timed(repeats, partial(trial, default, "t4", *words))
        print(f"{name}: {median * 1000:.0f} ms ({least * 1000:.0f} to {most * 1000:.0f}), {steps} steps")
    big = BenchServeWorkload(10_000, 256, 512, 512, seed=1)
    median, least, most, steps = timed(3, lambda: trial(big, "h200"))
    print(f"10,000 requests of 512 + 512 tokens: {median:.2f} s ({least:.2f} to {most:.2f}), {steps} steps")
    for count in (1000, 2000, 4000, 8000):
        load = BenchServeWorkload(count, 256, 512, 512, seed=1)
        median, _, _, steps = timed(3, partial(trial, load, "h200"))
        tracemalloc.start()
        trial(load, "h200")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(f"{count} requests: {steps} steps, {median / steps * 1e6:.1f} us a step, peak {peak / 2**20:.1f} MiB")
    seconds, line = study()
    print(f"a study of 60 trials with MLflow and the script: {seconds:.1f} s; {line}")


if __name__ == "__main__":
    main()
