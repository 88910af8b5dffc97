"""Examine configurations: start a server of each variant, ask it once, and compare it with the reference."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from storage.answers.record import AnswersKey, AnswersRecord
from storage.answers.store import AnswersStore
from storage.records import Failure, TrialKind
from tuner.cancellation import CancelToken
from tuner.engines.base import EngineInfo, Server
from tuner.engines.server.jobs import Job
from tuner.errors import TrialFailed
from tuner.quality.ask import AskFailed, Target, ask_positions, ask_questions
from tuner.quality.harness import HarnessTask
from tuner.quality.pairs import Pairs, pair
from tuner.quality.task import Task, outcome
from tuner.quality.texts import texts_of
from tuner.quality.tripwire import Tripwire, compare_positions
from tuner.quality.weights import weights_digest
from tuner.specs import LaunchSpec, Limits, ModelRef, TrialSpec
from tuner.workloads.spec import ClosedLoop

SMALL_BATCHES = {"--max-num-seqs": "4", "--max-num-batched-tokens": "1024"}
"""Flags of a server that is examined, unless they are given: vLLM reserves no memory for a prompt's probabilities."""

_NO_LOAD = ClosedLoop(max_concurrency=1, num_prompts=1, input_len=1, output_len=1)


class ExamFailed(Exception):
    """A variant cannot be examined; the message says why.

    Attributes:
        failure: of its server; None where the server started.
        log: of its server; None where no server was started.
    """

    def __init__(self, message: str, failure: Failure | None = None, log: Path | None = None) -> None:
        super().__init__(message)
        self.failure, self.log = failure, log


class AnsweringServer(Server, Protocol):
    """A server on this machine that can be asked."""

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers that its API requires."""


class AnsweringEngine(Protocol):
    """An engine whose servers can be asked: vLLM, not its simulation."""

    def info(self) -> EngineInfo:
        """Return the installation."""

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return why the configuration cannot work, see `Engine`."""

    def launch(self, spec: TrialSpec, limits: Limits) -> AnsweringServer:
        """Start a server, see `Engine`."""

    def start_program(self, argv: Sequence[str], environment: Mapping[str, str], log: Path, cwd: Path) -> Job:
        """Start another program. It is recorded, so that the watchdog ends it with a killed driver."""


@dataclass(frozen=True)
class Variant:
    """What a server serves, as far as it may change the answers: the checkpoint, flags and environment variables."""

    model: ModelRef
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def formats(self) -> tuple[str, ...]:
        """Flags and variables as words."""
        return (*self.argv, *(f"{name}={value}" for name, value in sorted(self.environment.items())))


@dataclass(frozen=True)
class Quality:
    """The comparison of a candidate with the reference; `pairs` is None without a task.

    `seconds` are those of the candidate's server and of the reference's, from launch to stop, whenever they ran.
    """

    tripwire: Tripwire
    pairs: Pairs | None
    seconds: tuple[float, float]


class Examiner:
    """Asks each variant once; the database keeps what it answered."""

    def __init__(
        self,
        engine: AnsweringEngine,
        device: str,
        store: AnswersStore,
        folder: Path,
        task: Task | HarnessTask | None,
        limits: Limits,
        cancelled: CancelToken,
    ) -> None:
        """Prepare what is asked.

        Args:
            engine: starts the servers.
            device: name of the GPU or CPU.
            store: keeps what servers answered.
            folder: of logs.
            task: the user's questions; None: only token probabilities are compared.
            limits: of a server.
            cancelled: ends a check.
        """
        self._engine = engine
        self._device = device
        self._store = store
        self._folder = folder
        self._task = task
        self._texts = texts_of(task)
        self._limits = limits
        self._cancelled = cancelled

    def compare(self, reference: Variant, candidate: Variant) -> Quality:
        """Compare two variants; a server starts only for one that was never asked.

        Raises:
            ExamFailed: if one of them cannot be served or asked, or both have different tokenizers.
        """
        first, second = self.answers(reference), self.answers(candidate)
        try:
            tripwire = compare_positions(first.answers["positions"], second.answers["positions"])
        except ValueError:
            raise ExamFailed("the candidate's tokenizer differs from the reference's") from None
        pairs = pair(first.answers["right"], second.answers["right"]) if self._task is not None else None
        return Quality(tripwire, pairs, (second.seconds, first.seconds))

    def answers(self, variant: Variant) -> AnswersRecord:
        """Return what a variant answers, from the database or from a server.

        Raises:
            ExamFailed: if it cannot be served or asked.
        """
        key = self._key(variant)
        stored = self._store.answers(key)
        if stored is not None:
            return stored
        began = time.monotonic()
        answers = self._ask(variant, key)
        record = AnswersRecord(key, variant.model.name, datetime.now(UTC), time.monotonic() - began, answers)
        self._store.add_answers(record)
        return record

    def _key(self, variant: Variant) -> AnswersKey:
        info = self._engine.info()
        asked = sha256("\0".join([*self._texts, self._task.digest if self._task else ""]).encode()).hexdigest()
        weights = weights_digest(variant.model.name)
        return AnswersKey(weights, variant.formats, f"{info.name} {info.version}", self._device, asked)

    def _ask(self, variant: Variant, key: AnswersKey) -> dict[str, Any]:
        spec = self._spec(variant, self._folder / key.digest[:12])
        log = spec.artifacts / "server.log"
        try:
            refused = self._engine.check(spec)
            if refused is not None:
                raise TrialFailed(refused)
            server = self._engine.launch(spec, spec.limits)
            try:
                server.wait_ready(self._cancelled)
                target = Target(
                    f"http://127.0.0.1:{server.port}/v1/completions", variant.model.served_name, server.headers
                )
                return self._answers_of(target, variant, spec.artifacts)
            finally:
                server.stop()
        except TrialFailed as failed:
            raise ExamFailed(failed.failure.message, failed.failure, _existing(log)) from None
        except AskFailed as failed:
            raise ExamFailed(str(failed), None, _existing(log)) from None

    def _answers_of(self, target: Target, variant: Variant, folder: Path) -> dict[str, Any]:
        answers: dict[str, Any] = {"positions": ask_positions(target, self._texts, self._cancelled)}
        if isinstance(self._task, HarnessTask):
            start, tokenizer = self._engine.start_program, variant.model.tokenizer
            answers["right"] = self._task.right(start, target, tokenizer, folder, self._cancelled)
        elif self._task is not None:
            texts = ask_questions(target, self._task.questions, self._cancelled)
            answers["right"] = outcome(self._task.questions, texts)
        return answers

    def _spec(self, variant: Variant, artifacts: Path) -> TrialSpec:
        small = [word for pair in SMALL_BATCHES.items() if not _given(pair[0], variant.argv) for word in pair]
        launch = LaunchSpec(variant.model, tuple(small), variant.argv, dict(variant.environment))
        return TrialSpec("quality", 0, 0, 1, TrialKind.SEARCH, {}, launch, _NO_LOAD, 1, artifacts, self._limits)


def _existing(file: Path) -> Path | None:
    return file if file.exists() else None


def _given(flag: str, argv: tuple[str, ...]) -> bool:
    return any(word.split("=")[0].replace("_", "-") == flag for word in argv)
