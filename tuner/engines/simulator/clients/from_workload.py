"""From a workload to the requests that a simulated server gets: lengths, times, and what prompts have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.engines.simulator.clients.client import SimulatedClient, SimulatedRequest
from tuner.engines.simulator.memory.blocks import Chain
from tuner.engines.simulator.scheduling.sequence import Prompt
from tuner.workloads.schedule import Offered, make_schedule
from tuner.workloads.spec import ClosedLoop, SingleWorkload
from tuner.workloads.texts import read_texts
from tuner.workloads.traffic import RequestClass, TextFile, Traffic

_CHARACTERS_PER_TOKEN = 4
"""Of a user's own texts, whose tokens are estimated: there is no tokenizer here."""


@dataclass(frozen=True)
class BenchLoad:
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


def bench_client(load: BenchLoad, pause_s: float) -> SimulatedClient:
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


def client_of(load: SingleWorkload, seed: int, caching: bool, pause_s: float) -> SimulatedClient:
    """Return the clients of a workload; `caching` says whether the server looks for what prompts have in common."""
    if isinstance(load, ClosedLoop):
        shape = BenchLoad(load.num_prompts, load.max_concurrency, load.input_len, load.output_len, seed=seed)
        return bench_client(shape, pause_s)
    chains = _Chains(load) if caching else None
    jobs = [_job(load, offered, chains) for offered in make_schedule(load, seed)]
    return SimulatedClient(jobs, load.users, load.max_in_flight, load.timeout_s, pause_s)


class _Chains:
    """The chains of a load's shared texts: the system prompt, and each class's documents behind it."""

    def __init__(self, traffic: Traffic) -> None:
        self._system = Chain()
        self._tokens = traffic.system_prompt
        self._documents: dict[tuple[str, int], Chain] = {}

    def of(self, name: str, kind: RequestClass, document: int | None) -> tuple[tuple[Chain, int], ...]:
        """Return the chains that a request's prompt begins with, and their tokens."""
        found = ((self._system, self._tokens),) if self._tokens else ()
        if document is None or kind.prefix is None:
            return found
        chain = self._documents.setdefault((name, document), Chain())
        return (*found, (chain, kind.prefix.tokens))


def _job(traffic: Traffic, offered: Offered, chains: _Chains | None) -> SimulatedRequest:
    kind = traffic.classes[offered.name]
    own, output = offered.input_tokens, offered.output_tokens
    if own is None or output is None:
        own, output = _of_text(kind, offered, own, output)
    before = traffic.system_prompt + (kind.prefix.tokens if kind.prefix is not None else 0)
    shared = () if chains is None else chains.of(offered.name, kind, offered.document)
    prompt = Prompt(offered.index, before + own, output, shared, kind.text == "repetitive")
    deadline = None if offered.at_s is None else offered.at_s + traffic.timeout_s
    return SimulatedRequest(prompt, offered.name, offered.at_s, deadline)


def _of_text(kind: RequestClass, offered: Offered, own: int | None, output: int | None) -> tuple[int, int]:
    """Return the tokens of a request whose prompt is the user's own text, estimated from its characters."""
    assert isinstance(kind.text, TextFile)
    assert offered.text is not None
    text = read_texts(kind.text.file)[offered.text]
    return (
        own if own is not None else max(1, len(text.prompt) // _CHARACTERS_PER_TOKEN),
        output if output is not None else text.output_tokens or max(1, len(text.answer or "") // _CHARACTERS_PER_TOKEN),
    )
