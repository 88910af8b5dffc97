"""Traffic against a real vLLM: a rate that it sustains, one that it does not, and agreement with vLLM's own client.

    python -m benchmarks.loadgen.traffic --vllm VENV/bin/vllm MODEL_FOLDER [--low 8] [--high 120] [--seconds 25]
        [--blocks 5] [--slow-ms 40] [--env VLLM_CPU_KVCACHE_SPACE=1] [--agreement-only] [--json FILE]

Two servers, with and without prefix caching, receive traffic of four request classes at both rates. On the first
server, `vllm bench serve` and `tuner.loadgen` then send the same prompts at the same times, which are those of a run of
the former. The prefix cache is emptied before each run. A block has two runs of each client, in an order that favours
neither, after a run that is left out.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.command_line import add_vllm_options, documented_parser, environment_variables, write_json
from benchmarks.loadgen.replay import TUNER_CLIENT, VLLM_CLIENT, Replay, empty_prefix_cache
from benchmarks.loadgen.vllm_bench import NEVER_CANCELLED, VllmBench
from benchmarks.text_table import MISSING, number_text, print_table
from records.trials import Repeat
from tuner.engines.vllm.engine import VllmServer
from tuner.workloads.traffic import Traffic

CLASSES = {
    "siso": {"input": {"lognormal": {"mean": 40, "cv": 0.4, "max": 128}}, "output": 16},
    "silo": {"input": 40, "output": {"lognormal": {"mean": 64, "cv": 0.4, "max": 128}}},
    "liso": {"input": 64, "output": 16, "prefix": {"tokens": 512, "documents": 4}},
    "lilo": {"input": 64, "output": 64, "prefix": {"tokens": 512, "documents": 4}},
}
"""Short or long input, short or long output."""
CLASS_SLOS = {
    "siso": {"p95_ttft_ms": 1000},
    "silo": {"p95_itl_ms": 250},
    "liso": {"p95_ttft_ms": 1000},
    "lilo": {"p95_itl_ms": 250},
}
AGREEMENT_METRICS = (
    "output_throughput",
    "mean_ttft_ms",
    "p50_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "p50_e2el_ms",
)
WARM_UP_REQUESTS = 20
RATES_CAPTION = (
    "Requests that complete, share within SLO by request class, TTFT in ms from the scheduled time and from sending, "
    "and share of prompt tokens in the prefix cache; one run per row"
)
AGREEMENT_CAPTION = (
    "tuner.loadgen / vllm bench serve, geometric mean of the blocks ± two standard errors (1: they agree), and the "
    "median ratio of the larger to the smaller of one client's two runs in a block"
)

Block = Mapping[str, Sequence[Repeat]]
"""The metrics of one block by client."""


def mixed_traffic(rate: float, requests: int) -> Traffic:
    """Return traffic of the four classes; a request is given up 5 s after its scheduled time.

    Args:
        rate: requests per second.
        requests: their number.
    """
    return Traffic.model_validate(
        {
            "arrivals": {"process": "poisson", "rate": rate},
            "requests": requests,
            "max_in_flight": 32,
            "timeout_s": 5,
            "classes": CLASSES,
            "slo": CLASS_SLOS,
        }
    )


def rate_figures(server: VllmServer, rates: Sequence[float], seconds: float) -> dict[str, dict[str, float | None]]:
    """Return the metrics of one run at each rate.

    Args:
        server: the server.
        rates: requests per second; the prefix hits are those of the first rate.
        seconds: duration of each run.
    """
    figures: dict[str, dict[str, float | None]] = {}
    for index, rate in enumerate(rates):
        repeat = server.benchmark(mixed_traffic(rate, round(rate * seconds)), index, NEVER_CANCELLED)
        hits = server.facts().prefix_hit_rate if index == 0 else None
        counts = {"offered": repeat.offered, "completed": repeat.completed, "prefix_hits": hits}
        figures[f"{rate:g}"] = {**counts, **repeat.metrics}
    return figures


def rate_rows(name: str, figures: Mapping[str, Mapping[str, float | None]]) -> list[list[str]]:
    """Return a row of the table for each rate."""
    return [
        [
            name,
            rate,
            f"{metrics['completed']:g} of {metrics['offered']:g}",
            *(_significant(metrics[f"{kind}.goodput_share"]) for kind in CLASSES),
            f"{_significant(metrics['p50_ttft_ms'])}, {_significant(metrics['p99_ttft_ms'])}",
            f"{_significant(metrics['client.p50_ttft_ms'])}, {_significant(metrics['client.p99_ttft_ms'])}",
            _significant(metrics["liso.p50_ttft_ms"]),
            _significant(metrics["prefix_hits"]),
        ]
        for rate, metrics in figures.items()
    ]


def print_rates(rows: Sequence[Sequence[str]]) -> None:
    """Print the figures of both servers at both rates."""
    header = ["prefix caching", "requests/s", "completed", *CLASSES]
    header += ["TTFT p50, p99", "from sending", "liso p50", "prefix hits"]
    print_table(RATES_CAPTION, header, rows)


def _significant(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4g}"


def run_blocks(replay: Replay, blocks: int, slow_ms: float) -> list[dict[str, list[Repeat]]]:
    """Run the blocks; print the requests with a TTFT above `slow_ms` in each run, as a check by the server."""
    results = []
    for number in range(blocks):
        repeats, slow = replay.block(number, slow_ms / 1000)
        results.append(repeats)
        counts = ", ".join(f"{client} {count}" for client, count in slow)
        print(f"block {number}: requests with a TTFT above {slow_ms:g} ms, by the server: {counts}", flush=True)
    return results


def agreement_ratios(blocks: Sequence[Block]) -> dict[str, dict[str, list[float]]]:
    """Return for each metric the ratios of the two clients, and the ratios of two runs of one client.

    The ratio of a block is that of the geometric means of each client's two runs.
    """
    ratios = {}
    for metric in AGREEMENT_METRICS:
        vllm, tuner = (
            np.log(np.array([[repeat.metrics[metric] for repeat in block[client]] for block in blocks], dtype=float))
            for client in (VLLM_CLIENT, TUNER_CLIENT)
        )
        between = np.exp(tuner.mean(axis=1) - vllm.mean(axis=1))
        within = np.exp(np.abs(np.diff(np.concatenate([vllm, tuner]), axis=1))[:, 0])
        ratios[metric] = {"between_clients": between.tolist(), "within_client": within.tolist()}
    return ratios


def print_ratios(ratios: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Print how far the two clients agree."""
    rows = []
    blocks = 0
    for metric, by_kind in ratios.items():
        logs = np.log(by_kind["between_clients"])
        blocks = len(logs)
        mean = float(np.mean(logs))
        half = 2 * float(np.std(logs, ddof=1)) / blocks**0.5 if blocks > 1 else float("nan")
        interval = f"[{np.exp(mean - half):.3f}, {np.exp(mean + half):.3f}]"
        each = " ".join(number_text(ratio, 3) for ratio in by_kind["between_clients"])
        rows.append([metric, f"{np.exp(mean):.3f}", interval, each, f"{np.median(by_kind['within_client']):.3f}"])
    header = ["metric", "ratio", "interval", "each block", "same client"]
    print_table(f"{AGREEMENT_CAPTION}; n = {blocks} blocks", header, rows)


def measure_traffic(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Run everything, print the tables and return the figures."""
    results: dict[str, object] = {}
    rates, seconds = (arguments.low, arguments.high), arguments.seconds
    rows: list[list[str]] = []
    variables = {"VLLM_SERVER_DEV_MODE": "1", **environment_variables(arguments.env)}
    flags = ("--generation-config", "vllm")
    with VllmBench(arguments.vllm, arguments.model, folder) as bench:
        warm_up = mixed_traffic(arguments.low, WARM_UP_REQUESTS)
        server = bench.server("on", warm_up, flags, variables)
        if not arguments.agreement_only:
            results["prefix caching on"] = figures = rate_figures(server, rates, seconds)
            rows += rate_rows("on", figures)
            empty_prefix_cache(server.port)
        traffic = mixed_traffic(arguments.low, round(arguments.low * seconds))
        blocks = run_blocks(Replay(bench, server, traffic, arguments.low), arguments.blocks, arguments.slow_ms)
        results["ratios"] = ratios = agreement_ratios(blocks)
        server.stop()
        if not arguments.agreement_only:
            server = bench.server("off", warm_up, (*flags, "--no-enable-prefix-caching"), variables)
            results["prefix caching off"] = figures = rate_figures(server, rates, seconds)
            rows += rate_rows("off", figures)
            server.stop()
            print_rates(rows)
    print_ratios(ratios)
    return results


def check_traffic() -> None:
    """Run the benchmark, print its tables and write its figures."""
    parser = documented_parser(__doc__)
    add_vllm_options(parser)
    parser.add_argument("--low", type=float, default=8.0, help="requests/s that the server sustains [8]")
    parser.add_argument("--high", type=float, default=120.0, help="requests/s that it does not sustain [120]")
    parser.add_argument("--seconds", type=float, default=25.0, help="duration of each run [25]")
    parser.add_argument("--blocks", type=int, default=5, help="each of two runs of both clients [5]")
    parser.add_argument("--slow-ms", type=float, default=40.0, help="a bound of the server's TTFT histogram [40]")
    parser.add_argument("--agreement-only", action="store_true", help="only the comparison with vLLM's client")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuner-traffic-") as name:
        write_json(arguments.json, measure_traffic(arguments, Path(name)))


if __name__ == "__main__":
    check_traffic()
