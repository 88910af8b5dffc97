"""The client's metrics: gaps, chunk times and statistics of a simulated run."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from benchmarks.simulator.bench_serve import BenchServeWorkload, bench_serve_client
from tests.unit.engines.simulator.helpers import run, server
from tuner.engines.simulator.client import SimulatedRequest
from tuner.engines.simulator.metrics import _statistics, chunk_times, token_gaps
from tuner.engines.simulator.sequence import Prompt


def test_gaps_and_chunk_times_of_an_answer() -> None:
    request = SimulatedRequest(Prompt(0, 5, 6), "", None, None)
    request.segments = [(1, 4), (6, 9)]
    received_s = np.array([1.0, 2, 3, 5, 8, 13, 21, 34, 55])
    # tokens at steps 1 2 3, and after a preemption at 6 7 8
    assert chunk_times(request, received_s, 1, False).tolist() == [2, 3, 5, 21, 34, 55]
    assert sorted(np.repeat(*token_gaps([request], received_s, 1, False)).tolist()) == [1, 2, 13, 16, 21]
    # the first token at once, then two tokens a chunk, then the rest
    assert chunk_times(request, received_s, 2, False).tolist() == [2, 3, 21, 55]
    request.segments = [(1, 1), (2, 3), (4, 2)]
    assert chunk_times(request, received_s, 1, True).tolist() == [2, 3, 8]


def test_metrics_have_the_names_of_vllm_bench_serve() -> None:
    made = server()
    result = run(made, BenchServeWorkload(20, 5, 64, 16, seed=1))
    metrics = result.bench_metrics((50, 99))
    duration = max(request.end_s or 0.0 for request in result.requests)
    assert metrics["output_throughput"] == pytest.approx(20 * 16 / duration)
    assert metrics["success_rate"] == 1.0
    assert {"mean_ttft_ms", "median_tpot_ms", "std_itl_ms", "p99_e2el_ms"} <= {*metrics}
    # for an answer of 16 tokens, E2EL is TTFT plus 15 times TPOT
    mean = {name: metrics[f"mean_{name}_ms"] or 0.0 for name in ("e2el", "ttft", "tpot")}
    assert mean["e2el"] == pytest.approx(mean["ttft"] + 15 * mean["tpot"])


def test_weighted_statistics_equal_numpys() -> None:
    made = server()
    result = run(made, BenchServeWorkload(30, 7, 64, 20, range_ratio=0.5, seed=2))
    metrics = result.bench_metrics((50, 90, 99))
    gaps = 1000 * np.concatenate(
        [np.diff(chunk_times(request, result.received_s, 1, False)) for request in result.requests]
    )
    for percentile in (50, 90, 99):
        assert metrics[f"p{percentile}_itl_ms"] == pytest.approx(float(np.percentile(gaps, percentile)))
    assert metrics["std_itl_ms"] == pytest.approx(float(gaps.std()))
    assert metrics["median_itl_ms"] == pytest.approx(float(np.median(gaps)))


def test_statistics_do_not_depend_on_the_number_of_blas_threads() -> None:
    """OpenBLAS adds the products of more than 10,000 values in parts, one for each thread."""
    seconds, counts = np.random.default_rng(0).random(200_000), np.arange(1, 200_001)
    with threadpool_limits(1, "blas"):
        alone = _statistics("itl", seconds, counts, [99])
    with threadpool_limits(2, "blas"):
        assert _statistics("itl", seconds, counts, [99]) == alone


def test_lengths_and_times_are_those_of_vllm_bench_serve() -> None:
    # totals of a published run of `vllm bench serve` with 500 prompts of 365 tokens, range ratio 0.4 and seed 0
    made = bench_serve_client(BenchServeWorkload(500, 250, 365, 365, range_ratio=0.4, rate=50.0), 0.0)
    assert sum(request.prompt.tokens for request in made.requests) == 185_881
    assert sum(request.prompt.output for request in made.requests) == 183_806
    # the last request is due at n / rate
    assert made.requests[-1].due_s == pytest.approx(10.0)
