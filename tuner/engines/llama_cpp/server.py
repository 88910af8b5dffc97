"""One running llama.cpp server of a trial: its load by our own generator, its facts and its failures.

A closed loop is sent by the load generator, too: vLLM's client need not be installed, and its prompts are texts whose
length a GGUF file's tokenizer could change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from storage.metrics import METRICS, TRAFFIC_ONLY
from storage.records import Failure, FailureKind, Phase, Repeat, ServerFacts
from tuner.cancellation import CancelToken
from tuner.engines.llama_cpp.failures import classify, context_problem
from tuner.engines.llama_cpp.prompts import TokenTools, token_tools
from tuner.engines.running_server import HOST, RunningServer
from tuner.engines.vllm.facts.metrics import StateMetrics
from tuner.engines.vllm.failures.classify import read_log
from tuner.errors import SettingError, trial_failed
from tuner.processes.records import ProcessRecords
from tuner.workloads.spec import SingleWorkload, as_traffic
from tuner.workloads.traffic import Traffic

RUNNING = "llamacpp:requests_processing"
WAITING = "llamacpp:requests_deferred"
PROMPT_TOKENS = "llamacpp:prompt_tokens_total"
CACHED_TOKENS = "llamacpp:prompt_tokens_cached_total"
DRAFTS = "llamacpp:spec_decode_num_drafts_total"
DRAFT_TOKENS = "llamacpp:spec_decode_num_draft_tokens_total"
ACCEPTED = "llamacpp:spec_decode_num_accepted_tokens_total"

STATE = StateMetrics(
    RUNNING, WAITING, None, None, (RUNNING, WAITING, PROMPT_TOKENS, CACHED_TOKENS, DRAFTS, DRAFT_TOKENS, ACCEPTED)
)

_SLOTS = re.compile(r"n_slots = (\d+), n_ctx_slot = (\d+), kv_unified = '(true|false)'")

CLOSED_LOOP_METRICS = frozenset(METRICS) - TRAFFIC_ONLY
"""The metrics of a closed loop; its requests are one class without an SLO."""


class LlamaCppServer(RunningServer):
    """See `Server`."""

    state_metrics = STATE
    reuse_connections = False

    def __init__(self, *, records: ProcessRecords, **started: Any) -> None:
        """Take over a started server; `records` is where the load generator is recorded."""
        super().__init__(**started)
        self._records = records
        self._tools: TokenTools | None = None

    def facts(self) -> ServerFacts:
        """See `Server`."""
        facts = facts_from_log(read_log(self._log))
        if self._before is None or self._after is None:
            return facts
        return with_benchmark_metrics(facts, self._before, self._after)

    def _classified(self, log_text: str, exit_code: int | None, phase: Phase) -> Failure:
        return classify(log_text, exit_code, phase)

    def _prompt_tools(self) -> TokenTools:
        if self._tools is None:
            url = f"http://{HOST}:{self.port}"
            try:
                self._tools = token_tools(self._model.tokenizer, url, self._records, self._api_key)
            except SettingError as error:
                raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, Phase.BENCHMARK, str(error)) from None
        return self._tools

    def _run_workload(self, workload: SingleWorkload, index: int, phase: Phase, cancelled: CancelToken) -> Repeat:
        if isinstance(workload, Traffic):
            repeat = self._valid_traffic(workload, index, phase, cancelled)
        else:
            # As with vLLM's client, a late generator slows a closed loop down and does not make it invalid.
            repeat, _ = self._traffic(as_traffic(workload), index, phase, cancelled)
        problem = None if repeat.completed else context_problem(read_log(self._log))
        if problem is not None:
            message = f"none of {repeat.offered} requests succeeded: {problem}"
            raise trial_failed(FailureKind.KV_CACHE_TOO_SMALL, phase, message)
        if isinstance(workload, Traffic):
            return repeat
        return replace(repeat, metrics=closed_loop_metrics(repeat.metrics))


def closed_loop_metrics(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the metrics of a closed loop that was sent as traffic: those over all requests."""
    return {name: value for name, value in metrics.items() if name in CLOSED_LOOP_METRICS}


def facts_from_log(text: str) -> ServerFacts:
    """Return the facts of the log: the size of the KV cache in tokens, and how many longest requests fit into it."""
    found = _SLOTS.search(text)
    if found is None:
        return ServerFacts()
    slots, tokens, unified = int(found[1]), int(found[2]), found[3] == "true"
    fitting = 1 if unified else slots
    return ServerFacts(kv_cache_tokens=fitting * tokens, max_concurrency=float(fitting))


def with_benchmark_metrics(facts: ServerFacts, before: Mapping[str, float], after: Mapping[str, float]) -> ServerFacts:
    """Return `facts` with the differences between two scrapes."""

    def increase(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    def ratio(part: float, whole: float) -> float | None:
        return part / whole if whole > 0 else None

    cached, read = increase(CACHED_TOKENS), increase(PROMPT_TOKENS)
    return replace(
        facts,
        prefix_hit_rate=ratio(cached, cached + read),
        spec_acceptance_rate=ratio(increase(ACCEPTED), increase(DRAFT_TOKENS)),
        spec_tokens_per_draft=ratio(increase(ACCEPTED), increase(DRAFTS)),
    )
