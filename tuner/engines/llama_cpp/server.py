"""One running llama.cpp server of a trial: its prompts, its facts and its failures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from storage.records import Failure, FailureKind, Phase, Repeat, ServerFacts
from tuner.engines.llama_cpp.failures import classify, context_problem
from tuner.engines.server.failures.classify import read_log
from tuner.engines.server.generator_server import GeneratorServer
from tuner.engines.server.metrics import StateMetrics
from tuner.engines.server.running_server import HOST
from tuner.engines.server.token_prompts import TokenTools, gguf_tools
from tuner.errors import trial_failed

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


class LlamaCppServer(GeneratorServer):
    """See `Server`."""

    state_metrics = STATE

    def _facts(self) -> ServerFacts:
        facts = facts_from_log(read_log(self._log))
        if self._before is None or self._after is None:
            return facts
        return with_benchmark_metrics(facts, self._before, self._after)

    def _classified(self, log_text: str, exit_code: int | None, phase: Phase) -> Failure:
        return classify(log_text, exit_code, phase)

    def _make_tools(self) -> TokenTools:
        return gguf_tools(self._model.tokenizer, f"http://{HOST}:{self.port}", self._records, self._api_key)

    def _check_sent(self, repeat: Repeat, index: int, phase: Phase) -> None:
        problem = None if repeat.completed else context_problem(read_log(self._log))
        if problem is not None:
            message = f"none of {repeat.offered} requests succeeded: {problem}"
            raise trial_failed(FailureKind.KV_CACHE_TOO_SMALL, phase, message)


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
