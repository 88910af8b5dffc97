"""One running server of a trial, of unknown make: its readiness, its prompts, its facts and its failures."""

from __future__ import annotations

from typing import Any

from storage.records import Failure, FailureKind, Phase, Repeat, ServerFacts
from tuner.engines.openai.failures import classify
from tuner.engines.openai.prompts import TrialPrompts, find_tools
from tuner.engines.server.generator_server import GeneratorServer
from tuner.engines.server.metrics import READ_METRICS, with_benchmark_metrics
from tuner.engines.server.running_server import HEALTH_S, HOST
from tuner.errors import trial_failed
from tuner.http import get_local
from tuner.processes.readiness import NO_ENDPOINT
from tuner.workloads.results.requests import RequestRecord

TOLERABLE_TOKENS = 8
TOLERABLE_SHARE = 0.05
"""How far the server's count of a prompt may be from the planned one: tokens, or a share of the prompt.

Servers add tokens of a beginning, or none; a limit on lengths, or another tokenizer, differs by more.
"""


class OpenAiServer(GeneratorServer):
    """See `Server`."""

    health_required = False

    def __init__(self, *, prompts_key: str, **started: Any) -> None:
        """Take over a started server; its prompts depend on `prompts_key`."""
        super().__init__(**started)
        self._prompts_key = prompts_key

    def _facts(self) -> ServerFacts:
        """Return the facts of `/metrics` if it has vLLM's names."""
        before, after = self._before, self._after
        if before is None or not after or not set(after) & set(READ_METRICS):
            return ServerFacts()
        return with_benchmark_metrics(ServerFacts(), before, after, self._usage)

    def _classified(self, log_text: str, exit_code: int | None, phase: Phase) -> Failure:
        return classify(log_text, exit_code, phase)

    def _make_tools(self) -> TrialPrompts:
        url = f"http://{HOST}:{self.port}"
        tools = find_tools(self._model.tokenizer, url, self._records, self._api_key)
        return TrialPrompts(tools, self._prompts_key)

    def _healthy(self) -> bool:
        reply = get_local(HOST, self.port, "/health", HEALTH_S)
        if reply is None or reply.status not in NO_ENDPOINT:
            return reply is not None and reply.status == 200
        models = get_local(HOST, self.port, "/v1/models", HEALTH_S, headers=self.headers)
        return models is not None and models.status == 200

    def _check_sent(self, repeat: Repeat, index: int, phase: Phase) -> None:
        records = self._sent(index, phase)
        failed = next((record for record in records if record.error is not None), None)
        if repeat.completed == 0 and failed is not None:
            message = f"none of {repeat.offered} requests succeeded; the first: {failed.error}"
            raise trial_failed(FailureKind.REQUESTS_FAILED, phase, message)
        other = next((record for record in records if has_other_length(record)), None)
        if other is not None:
            message = (
                f"the server counts {other.input_tokens} tokens in a prompt of {other.planned_input}; give its model's "
                "tokenizer, and let nothing before the server change prompts"
            )
            raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, phase, message)


def has_other_length(record: RequestRecord) -> bool:
    """Return whether the server counted another number of prompt tokens than was sent; False without a count."""
    planned, counted = record.planned_input, record.input_tokens
    if planned is None or counted is None:
        return False
    return abs(counted - planned) > max(TOLERABLE_TOKENS, TOLERABLE_SHARE * planned)
