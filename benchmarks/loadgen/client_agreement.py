"""Do the figures of the resident client agree with those of the plain command, and what does it save?

    python -m benchmarks.loadgen.client_agreement --vllm VENV/bin/vllm MODEL_FOLDER [--pairs 6]
        [--env VLLM_CPU_KVCACHE_SPACE=1]

One server; plain `vllm bench serve` and the same words in the resident helper alternate, which of the two goes first
changes from pair to pair, and every run has a seed of its own, so that none hits another's prefix cache. Prints each
pair, the medians, and for each metric the median of the pairs' ratios with the range of the ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from storage.records import Repeat, TrialKind
from tuner.engines.base import EngineSettings
from tuner.engines.vllm.bench import bench_words, read_result
from tuner.engines.vllm.engine import VllmEngine
from tuner.engines.vllm.environment import base_environment, own_environment
from tuner.engines.vllm.executable import find_executable, installation
from tuner.engines.vllm.resident_client import HelperJob, PlainJob
from tuner.engines.vllm.toolbox import Toolbox
from tuner.specs import LaunchSpec, Limits, ModelRef, TrialSpec
from tuner.workloads.spec import ClosedLoop

METRICS = ("output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "p99_itl_ms")
CLIENT_S = 600.0

Start = Callable[[list[str], dict[str, str], Path, Path], HelperJob]


class Client:
    """One way to run the client: what it measured, and how long the whole run took on the wall."""

    def __init__(self, name: str, start: Start) -> None:
        self.name = name
        self.start = start
        self.repeats: list[Repeat] = []
        self.walls: list[float] = []

    def run(self, model: ModelRef, load: ClosedLoop, port: int, seed: int, folder: Path) -> None:
        """Send the load once."""
        url, result = f"http://127.0.0.1:{port}/v1", f"{self.name}-{seed}.json"
        begun = time.monotonic()
        words = bench_words(model, load, url, seed, folder, result)
        environment = {**base_environment(os.environ), **own_environment(folder, None)}
        job = self.start(words, environment, folder / f"{self.name}-{seed}.log", folder)
        if not job.wait(CLIENT_S) or job.exit_code != 0:
            job.cancel()
            raise SystemExit(f"the {self.name} client failed: see {folder}/{self.name}-{seed}.log")
        self.walls.append(time.monotonic() - begun)
        self.repeats.append(read_result(folder / result, load, len(self.repeats), seed))

    def values(self, metric: str) -> list[float]:
        """Return a metric of every run."""
        return [value for repeat in self.repeats if (value := repeat.metrics[metric]) is not None]


def main() -> None:
    """Measure and print."""
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="tuner-agreement-") as name:
        measure(arguments, Path(name))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="a model folder, served with dummy weights")
    parser.add_argument("--vllm", help="the vllm executable")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the server")
    return parser.parse_args()


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """Start the server, alternate the clients, print."""
    load = ClosedLoop(max_concurrency=10, num_prompts=arguments.prompts, input_len=128, output_len=64)
    model = ModelRef(str(arguments.model), str(arguments.model), str(arguments.model))
    home = Path(os.environ.get("TUNER_HOME", folder / "home"))
    executable = find_executable(arguments.vllm)
    engine = VllmEngine(EngineSettings("vllm", str(executable), home))
    tools = Toolbox(installation(executable, home), home, base_environment(os.environ))
    base = ("--load-format", "dummy", "--max-model-len", "1024")
    environment = dict(pair.split("=", 1) for pair in arguments.env)
    launch = LaunchSpec(model, ("--max-num-seqs", "32"), base, environment)
    spec = TrialSpec("agreement", 0, 0, 1, TrialKind.SEARCH, {}, launch, load, 1, folder / "artifacts", Limits())

    def plain(words: list[str], variables: dict[str, str], log: Path, cwd: Path) -> HelperJob:
        return PlainJob([str(executable), *words], variables, log, cwd)

    clients = (Client("plain", plain), Client("resident", tools.start))
    try:
        server = engine.launch(spec, spec.limits)
        server.wait_ready(threading.Event())
        if tools.resident is None:
            raise SystemExit("the resident helper does not start here: there is nothing to compare")
        server.warm_up(load, threading.Event())
        for pair in range(arguments.pairs):
            for place, client in enumerate(clients if pair % 2 == 0 else reversed(clients)):
                client.run(model, load, server.port, 2000 + 2 * pair + place, folder)
        report(*clients)
    finally:
        tools.close()
        engine.close()


def report(plain: Client, resident: Client) -> None:
    """Print the pairs, the medians and the ratios."""
    print(
        f"{len(plain.walls)} pairs; wall-clock of the client, median: plain {statistics.median(plain.walls):.2f} s, ",
        end="",
    )
    print(f"resident {statistics.median(resident.walls):.2f} s")
    print(f"{'metric':<20}{'plain':>10}{'resident':>10}{'ratio':>8}   ratios of the pairs")
    for metric in METRICS:
        mine, theirs = resident.values(metric), plain.values(metric)
        ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
        row = f"{metric:<20}{statistics.median(theirs):>10.2f}{statistics.median(mine):>10.2f}"
        print(f"{row}{statistics.median(ratios):>8.3f}   {' '.join(f'{ratio:.3f}' for ratio in ratios)}")


if __name__ == "__main__":
    main()
