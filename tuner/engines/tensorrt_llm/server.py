"""One running TensorRT-LLM server of a trial: its name, its prompts, its facts and its failures."""

from __future__ import annotations

from pathlib import Path

from storage.records import Failure, FailureKind, Phase, Repeat, ServerFacts
from tuner.cancellation import CancelToken
from tuner.engines.server.failures.classify import read_log
from tuner.engines.server.generator_server import GeneratorServer
from tuner.engines.server.running_server import HOST
from tuner.engines.server.token_prompts import TokenTools
from tuner.engines.tensorrt_llm.facts import STATE, facts_from_log, with_metrics
from tuner.engines.tensorrt_llm.failures import classify, length_problem
from tuner.engines.tensorrt_llm.prompts import token_tools
from tuner.errors import trial_failed
from tuner.processes.readiness import wait_ready


class TensorRtLlmServer(GeneratorServer):
    """See `Server`."""

    state_metrics = STATE
    reuse_connections = True

    def _facts(self) -> ServerFacts:
        facts = facts_from_log(read_log(self._log))
        if self._before is None or self._after is None:
            return facts
        return with_metrics(facts, self._before, self._after, self._usage)

    def _wait_ready(self, cancelled: CancelToken) -> None:
        wait_ready(
            *(self._process, HOST, self.port, listed_name(self._model.name), self._limits.startup_s, cancelled),
            *(self._classify, self.headers),
        )

    def _classified(self, log_text: str, exit_code: int | None, phase: Phase) -> Failure:
        return classify(log_text, exit_code, phase)

    def _make_tools(self) -> TokenTools:
        return token_tools(self._model.tokenizer, self._records)

    def _check_sent(self, repeat: Repeat, index: int, phase: Phase) -> None:
        if repeat.completed:
            return
        errors = (record.error for record in self._sent(index, phase) if record.error is not None)
        problem = next((found for error in errors if (found := length_problem(error)) is not None), None)
        if problem is not None:
            message = f"none of {repeat.offered} requests succeeded: {problem}"
            raise trial_failed(FailureKind.KV_CACHE_TOO_SMALL, phase, message)


def listed_name(model: str) -> str:
    """Return the name under which `/v1/models` lists a model: that of its folder, else its hub name.

    Only versions from 1.3 on have a flag for another name. No version compares the name in a request with it.
    """
    folder = Path(model)
    return folder.name if folder.is_dir() else model
