"""From a workload to the requests that a simulated server gets: lengths, times, and what prompts have in common."""

from __future__ import annotations

from tuner.engines.simulator.clients.bench_serve import BenchServeWorkload, bench_serve_client
from tuner.engines.simulator.clients.client import SimulatedClient, SimulatedRequest
from tuner.engines.simulator.memory.block_pool import Chain
from tuner.engines.simulator.scheduling.sequence import Prompt
from tuner.workloads.schedule import OfferedRequest, make_schedule
from tuner.workloads.spec import ClosedLoop, SingleWorkload
from tuner.workloads.texts import read_texts
from tuner.workloads.traffic import RequestClass, TextFile, Traffic

_CHARACTERS_PER_TOKEN = 4
"""Of a user's own texts, whose tokens are estimated: there is no tokenizer here."""


def workload_client(load: SingleWorkload, seed: int, caching: bool, pause_s: float) -> SimulatedClient:
    """Return the clients of a workload; `caching` says whether the server looks for what prompts have in common."""
    if isinstance(load, ClosedLoop):
        shape = BenchServeWorkload(load.num_prompts, load.max_concurrency, load.input_len, load.output_len, seed=seed)
        return bench_serve_client(shape, pause_s)
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


def _job(traffic: Traffic, offered: OfferedRequest, chains: _Chains | None) -> SimulatedRequest:
    kind = traffic.classes[offered.name]
    own, output = offered.input_tokens, offered.output_tokens
    if own is None or output is None:
        own, output = _of_text(kind, offered, own, output)
    before = traffic.system_prompt + (kind.prefix.tokens if kind.prefix is not None else 0)
    shared = () if chains is None else chains.of(offered.name, kind, offered.document)
    prompt = Prompt(offered.index, before + own, output, shared, kind.text == "repetitive")
    deadline = None if offered.at_s is None else offered.at_s + traffic.timeout_s
    return SimulatedRequest(prompt, offered.name, offered.at_s, deadline)


def _of_text(kind: RequestClass, offered: OfferedRequest, own: int | None, output: int | None) -> tuple[int, int]:
    """Return the tokens of a request whose prompt is the user's own text, estimated from its characters."""
    assert isinstance(kind.text, TextFile)
    assert offered.text is not None
    text = read_texts(kind.text.file)[offered.text]
    return (
        own if own is not None else max(1, len(text.prompt) // _CHARACTERS_PER_TOKEN),
        output if output is not None else text.output_tokens or max(1, len(text.answer or "") // _CHARACTERS_PER_TOKEN),
    )
