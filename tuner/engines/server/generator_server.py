"""A running server to which the project's own load generator sends every workload, closed loops included.

Engines other than vLLM use it: vLLM, whose client sends closed loops to vLLM, need not be installed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from storage.metrics import METRICS, TRAFFIC_ONLY
from storage.records import FailureKind, Phase, Repeat
from tuner.cancellation import CancelToken
from tuner.engines.server.common_prompts import with_common_tokens
from tuner.engines.server.running_server import RunningServer
from tuner.engines.server.traffic import PromptTools
from tuner.errors import SettingError, trial_failed
from tuner.loadgen.result import RecordsError, read_records
from tuner.processes.records import ProcessRecords
from tuner.workloads.results.requests import RequestRecord
from tuner.workloads.spec import SingleWorkload, as_traffic
from tuner.workloads.traffic import Traffic

CLOSED_LOOP_METRICS = frozenset(METRICS) - TRAFFIC_ONLY
"""The metrics of a closed loop; its requests are one class without an SLO."""


class GeneratorServer(RunningServer):
    """See `Server`."""

    reuse_connections = False

    def __init__(self, *, records: ProcessRecords, tokenizers: tuple[str, ...] = (), **started: Any) -> None:
        """Take over a started server.

        Args:
            records: where the load generator is recorded.
            tokenizers: of all engines of a study of several; see `EngineSettings`. Each request of such a study has its
                own connection, whichever the engine.
            started: the arguments of `RunningServer`.
        """
        super().__init__(**started)
        self._records = records
        self._tokenizers = tokenizers
        self._prompts: PromptTools | None = None
        if tokenizers:
            self.reuse_connections = False

    @abstractmethod
    def _make_tools(self) -> PromptTools:
        """Return what makes the prompts.

        Raises:
            SettingError: if the tokenizer cannot be read.
        """

    def _check_sent(self, repeat: Repeat, index: int, phase: Phase) -> None:
        """Raise if requests that were sent show that the server cannot be measured.

        Raises:
            TrialFailed: with the reason.
        """

    def _sent(self, index: int, phase: Phase) -> Sequence[RequestRecord]:
        """Return the records of a run; empty if they cannot be read, with which the benchmark has failed already."""
        name = "warmup" if phase is Phase.WARMUP else f"requests-{index}"
        try:
            return read_records(self._artifacts / f"{name}.parquet")
        except RecordsError:
            return ()

    def _prompt_tools(self) -> PromptTools:
        if self._prompts is None:
            try:
                self._prompts = with_common_tokens(self._make_tools(), self._tokenizers)
            except SettingError as error:
                raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, Phase.BENCHMARK, str(error)) from None
        return self._prompts

    def _run_workload(self, workload: SingleWorkload, index: int, phase: Phase, cancelled: CancelToken) -> Repeat:
        if isinstance(workload, Traffic):
            repeat = self._valid_traffic(workload, index, phase, cancelled)
        else:
            # As with vLLM's client, a late generator slows a closed loop down and does not make it invalid.
            repeat, _ = self._traffic(as_traffic(workload), index, phase, cancelled)
        self._check_sent(repeat, index, phase)
        if isinstance(workload, Traffic):
            return repeat
        return replace(repeat, metrics=closed_loop_metrics(repeat.metrics))


def closed_loop_metrics(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the metrics of a closed loop that was sent as traffic: those over all requests."""
    return {name: value for name, value in metrics.items() if name in CLOSED_LOOP_METRICS}
