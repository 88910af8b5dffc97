"""Does the resident client measure the same as `vllm bench serve`, and how much time does it save?

    python -m benchmarks.loadgen.client_agreement --vllm VENV/bin/vllm MODEL_FOLDER [--pairs 6] [--prompts 100]
        [--env VLLM_CPU_KVCACHE_SPACE=1]

One server. `vllm bench serve` as a plain command and with the same arguments in the resident helper alternate; the
order changes from pair to pair. Each run has a seed of its own, so that no run hits another's prefix cache.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.command_line import add_vllm_options, documented_parser, environment_variables
from benchmarks.loadgen.vllm_bench import CLIENT_LIMIT_S, VllmBench
from benchmarks.text_table import number_text, print_table
from records.trials import Repeat
from tuner.engines.server.traffic import Job, PlainJob
from tuner.engines.vllm.bench_serve import bench_arguments, read_result
from tuner.workloads.spec import ClosedLoop

CLIENT_METRICS = (
    *("output_throughput", "mean_ttft_ms", "p99_ttft_ms"),
    *("mean_tpot_ms", "p99_tpot_ms", "p99_itl_ms"),
)
AGREEMENT_SEED = 2000
CLIENT_CAPTION = (
    "Metrics by client, medians in tokens/s and ms; ratio: the median of resident / plain over the pairs (1: they "
    "agree), with its lowest and highest value"
)

StartClient = Callable[[list[str], dict[str, str], Path, Path], Job]
"""Starts a client: its arguments, its environment, its log and its working folder."""


class TimedClient:
    """One way to run the client.

    Attributes:
        name: as printed.
        repeats: the metrics of each run.
        walls_s: the wall-clock seconds of each run.
    """

    def __init__(self, name: str, start: StartClient) -> None:
        self.name = name
        self._start = start
        self.repeats: list[Repeat] = []
        self.walls_s: list[float] = []

    def run(self, bench: VllmBench, workload: ClosedLoop, port: int, seed: int) -> None:
        """Run the client once.

        Raises:
            SystemExit: if the client fails.
        """
        folder, result = bench.folder, f"{self.name}-{seed}.json"
        log = folder / f"{self.name}-{seed}.log"
        begun = time.monotonic()
        words = bench_arguments(bench.model, workload, f"http://127.0.0.1:{port}/v1", seed, folder, result)
        job = self._start(words, bench.client_environment(), log, folder)
        if not job.wait(CLIENT_LIMIT_S) or job.exit_code != 0:
            job.cancel()
            raise SystemExit(f"the {self.name} client failed; see {log}")
        self.walls_s.append(time.monotonic() - begun)
        self.repeats.append(read_result(folder / result, workload, len(self.repeats), seed))

    def values(self, metric: str) -> list[float]:
        """Return a metric of every run."""
        return [value for repeat in self.repeats if (value := repeat.metrics[metric]) is not None]


def alternate_clients(arguments: argparse.Namespace, folder: Path) -> tuple[TimedClient, TimedClient]:
    """Run the plain and the resident client in alternation against one server.

    Raises:
        SystemExit: if the resident helper does not start.
    """
    workload = ClosedLoop(max_concurrency=10, num_prompts=arguments.prompts, input_len=128, output_len=64)
    with VllmBench(arguments.vllm, arguments.model, folder) as bench:

        def start_plain(words: list[str], variables: dict[str, str], log: Path, cwd: Path) -> Job:
            return PlainJob([str(bench.executable), *words], variables, log, cwd, bench.tools.records)

        plain, resident = TimedClient("plain", start_plain), TimedClient("resident", bench.tools.start)
        variables = environment_variables(arguments.env)
        server = bench.server("agreement", workload, ("--max-num-seqs", "32"), variables)
        if bench.tools.resident is None:
            raise SystemExit("the resident helper does not start here, so there is nothing to compare")
        for pair in range(arguments.pairs):
            clients = (plain, resident) if pair % 2 == 0 else (resident, plain)
            for place, client in enumerate(clients):
                client.run(bench, workload, server.port, AGREEMENT_SEED + 2 * pair + place)
    return plain, resident


def print_agreement(plain: TimedClient, resident: TimedClient) -> None:
    """Print the wall-clock and the metrics of both clients."""
    walls = [(client.name, statistics.median(client.walls_s)) for client in (plain, resident)]
    print("wall-clock of the client, median: " + ", ".join(f"{name} {wall:.2f} s" for name, wall in walls))
    rows = []
    for metric in CLIENT_METRICS:
        plain_values, resident_values = plain.values(metric), resident.values(metric)
        ratios = sorted(a / b for a, b in zip(resident_values, plain_values, strict=True))
        medians = [statistics.median(plain_values), statistics.median(resident_values)]
        spread = [statistics.median(ratios), ratios[0], ratios[-1]]
        rows.append([metric, *(number_text(each, 2) for each in medians), *(number_text(each, 3) for each in spread)])
    header = ["metric", "plain", "resident", "ratio", "lowest", "highest"]
    print_table(f"{CLIENT_CAPTION}; n = {len(plain.walls_s)} pairs", header, rows)


def compare_clients() -> None:
    """Run both clients and print how far they agree."""
    parser = documented_parser(__doc__)
    add_vllm_options(parser)
    parser.add_argument("--pairs", type=int, default=6, help="runs of each client [6]")
    parser.add_argument("--prompts", type=int, default=100, help="prompts of each run [100]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuner-agreement-") as name:
        print_agreement(*alternate_clients(arguments, Path(name)))


if __name__ == "__main__":
    compare_clients()
