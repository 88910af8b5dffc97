"""The client of published runs of `vllm bench serve`, with random lengths and arrivals at a rate.

The client draws lengths from `default_rng(seed)` and gaps between arrivals from the legacy generator
(vLLM's benchmarks/datasets.py and serve.py). With seed 0 the tokens add up to those of the published runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.engines.simulator.client import SimulatedClient, SimulatedRequest
from tuner.engines.simulator.sequence import Prompt


@dataclass(frozen=True)
class BenchServeWorkload:
    """A workload of `vllm bench serve`, under the client's own option names.

    Lengths in tokens are uniform between (1 - range_ratio) and (1 + range_ratio) times `input_len` or `output_len`.
    `rate` is in requests/s; None sends all requests at once, at most `max_concurrency` at a time.
    """

    num_prompts: int
    max_concurrency: int | None
    input_len: int
    output_len: int
    range_ratio: float = 0.0
    rate: float | None = None
    burstiness: float = 1.0
    seed: int = 0


def bench_serve_client(workload: BenchServeWorkload, pause_s: float) -> SimulatedClient:
    """Return the client of a workload; `pause_s` is as in `SimulatedClient`."""
    random, intervals = np.random.default_rng(workload.seed), np.random.RandomState(workload.seed)
    inputs = _lengths(random, workload.input_len, workload.range_ratio, workload.num_prompts)
    outputs = _lengths(random, workload.output_len, workload.range_ratio, workload.num_prompts)
    times: list[float | None] = [None] * workload.num_prompts
    if workload.rate is not None:
        scale = 1.0 / (workload.rate * workload.burstiness)
        gaps = intervals.gamma(workload.burstiness, scale, workload.num_prompts)
        # the client scales the gaps so that the last request is due at n / rate
        gaps *= workload.num_prompts / workload.rate / gaps.sum()
        times = np.cumsum(gaps).tolist()
    requests = [
        SimulatedRequest(Prompt(index, inputs[index], outputs[index]), "", times[index], None)
        for index in range(workload.num_prompts)
    ]
    users = workload.max_concurrency or workload.num_prompts
    closed_users = users if workload.rate is None else None
    return SimulatedClient(requests, closed_users, workload.max_concurrency, None, pause_s)


def _lengths(random: np.random.Generator, length: int, ratio: float, count: int) -> list[int]:
    low, high = int(np.floor(length * (1 - ratio))), int(np.ceil(length * (1 + ratio)))
    drawn: list[int] = random.integers(max(1, low), high + 1, count).tolist()
    return drawn
