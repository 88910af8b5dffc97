"""Builds the client of a workload: the lengths and times of its requests, and the prefixes that they share."""

from __future__ import annotations

from tuner.engines.simulator.clients.bench_serve import BenchServeWorkload, bench_serve_client
from tuner.engines.simulator.clients.client import SimulatedClient, SimulatedRequest
from tuner.engines.simulator.memory.block_pool import Chain
from tuner.engines.simulator.scheduling.sequence import Prompt
from tuner.errors import SettingError
from tuner.workloads.reading.texts import read_texts
from tuner.workloads.request_class import RequestClass, TextFile
from tuner.workloads.schedule import OfferedRequest, make_schedule
from tuner.workloads.spec import ClosedLoop, SingleWorkload
from tuner.workloads.traffic import Traffic

_CHARACTERS_PER_TOKEN = 4
"""Estimate for the user's own prompts: the simulator has no tokenizer."""


def workload_client(workload: SingleWorkload, seed: int, caching: bool, pause_s: float) -> SimulatedClient:
    """Return the client of a workload.

    Args:
        workload: the workload.
        seed: of lengths, times and classes.
        caching: whether the server has prefix caching; without it, shared prefixes are left out.
        pause_s: as in `SimulatedClient`.

    Raises:
        UserError: for requests whose cost is not modelled.
    """
    if isinstance(workload, ClosedLoop):
        bench_serve = BenchServeWorkload(
            workload.num_prompts, workload.max_concurrency, workload.input_len, workload.output_len, seed=seed
        )
        return bench_serve_client(bench_serve, pause_s)
    for request_class in workload.sent_classes.values():
        refuse_unmodelled(request_class)
    prefixes = _SharedPrefixes(workload) if caching else None
    requests = [_request(workload, offered, prefixes) for offered in make_schedule(workload, seed)]
    return SimulatedClient(requests, workload.users, workload.max_in_flight, workload.timeout_s, pause_s)


def refuse_unmodelled(request_class: RequestClass) -> None:
    """Refuse a class whose requests cost what the simulator does not model.

    Raises:
        SettingError: naming the class's field.
    """
    unmodelled = {"adapters": "LoRA adapters are", "json_schema": "structured output is"}
    for name, subject in unmodelled.items():
        if getattr(request_class, name):
            remedy = "measure with {engine} vllm, or leave it out of the class"
            raise SettingError("workload", name, f"{subject} not simulated", remedy)


class _SharedPrefixes:
    """The chains of the shared prefixes: the system prompt, and each class's documents."""

    def __init__(self, traffic: Traffic) -> None:
        self._system_prompt = Chain()
        self._system_tokens = traffic.system_prompt
        self._documents: dict[tuple[str, int], Chain] = {}

    def of(self, name: str, request_class: RequestClass, document: int | None) -> tuple[tuple[Chain, int], ...]:
        """Return the chains that a prompt begins with, each with its length in tokens."""
        chains = ((self._system_prompt, self._system_tokens),) if self._system_tokens else ()
        if document is None or request_class.prefix is None:
            return chains
        chain = self._documents.setdefault((name, document), Chain())
        return (*chains, (chain, request_class.prefix.tokens))


def _request(traffic: Traffic, offered: OfferedRequest, prefixes: _SharedPrefixes | None) -> SimulatedRequest:
    request_class = traffic.classes[offered.name]
    own_tokens, output = offered.input_tokens, offered.output_tokens
    if own_tokens is None or output is None:
        own_tokens, output = _estimated_lengths(request_class, offered, own_tokens, output)
    prefix_tokens = traffic.system_prompt + (request_class.prefix.tokens if request_class.prefix is not None else 0)
    shared = () if prefixes is None else prefixes.of(offered.name, request_class, offered.document)
    repetitive = request_class.text == "repetitive"
    prompt = Prompt(
        offered.index, prefix_tokens + own_tokens, output, shared, repetitive, priority=request_class.priority
    )
    deadline = None if offered.at_s is None else offered.at_s + traffic.timeout_s
    return SimulatedRequest(prompt, offered.name, offered.at_s, deadline)


def _estimated_lengths(
    request_class: RequestClass, offered: OfferedRequest, own_tokens: int | None, output: int | None
) -> tuple[int, int]:
    """Return the tokens of prompt and answer of the user's own text, estimated from its characters where unknown."""
    assert isinstance(request_class.text, TextFile)
    assert offered.text is not None
    text = read_texts(request_class.text.file).texts[offered.text]
    return (
        own_tokens if own_tokens is not None else max(1, len(text.prompt) // _CHARACTERS_PER_TOKEN),
        output if output is not None else text.output_tokens or max(1, len(text.answer or "") // _CHARACTERS_PER_TOKEN),
    )
