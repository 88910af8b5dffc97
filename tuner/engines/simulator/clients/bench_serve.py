"""The workload of `vllm bench serve --dataset-name random`, with its own random draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.engines.simulator.clients.client import SimulatedClient, SimulatedRequest
from tuner.engines.simulator.scheduling.sequence import Prompt


@dataclass(frozen=True)
class BenchServeWorkload:
    """A load of `vllm bench serve --dataset-name random`, with its options; `rate` in requests/s, None for all at once.

    Lengths are uniform between (1 - range_ratio) and (1 + range_ratio) of what was asked for. The same seed gives the
    client's own lengths and times: it draws lengths from `default_rng(seed)` and intervals from the legacy generator
    (benchmarks/datasets.py, serve.py). With seed 0 the tokens add up to those of the published runs.
    """

    num_prompts: int
    max_concurrency: int | None
    input_len: int
    output_len: int
    range_ratio: float = 0.0
    rate: float | None = None
    burstiness: float = 1.0
    seed: int = 0


def bench_serve_client(load: BenchServeWorkload, pause_s: float) -> SimulatedClient:
    """Return the clients of such a load."""
    random, intervals = np.random.default_rng(load.seed), np.random.RandomState(load.seed)
    inputs = _around(random, load.input_len, load.range_ratio, load.num_prompts)
    outputs = _around(random, load.output_len, load.range_ratio, load.num_prompts)
    times: list[float | None] = [None] * load.num_prompts
    if load.rate is not None:
        gaps = intervals.gamma(load.burstiness, 1.0 / (load.rate * load.burstiness), load.num_prompts)
        gaps *= load.num_prompts / load.rate / gaps.sum()  # as the client does, so that the last is due at n / rate
        times = np.cumsum(gaps).tolist()
    jobs = [
        SimulatedRequest(Prompt(index, inputs[index], outputs[index]), "", times[index], None)
        for index in range(load.num_prompts)
    ]
    users = load.max_concurrency or load.num_prompts
    return SimulatedClient(jobs, users if load.rate is None else None, load.max_concurrency, None, pause_s)


def _around(random: np.random.Generator, length: int, ratio: float, count: int) -> list[int]:
    low, high = int(np.floor(length * (1 - ratio))), int(np.ceil(length * (1 + ratio)))
    drawn: list[int] = random.integers(max(1, low), high + 1, count).tolist()
    return drawn
