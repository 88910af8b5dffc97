"""Examine configurations: start a server of each variant, ask it once, compare it, and keep the result."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from records.answers import AnswersKey, AnswersRecord
from records.trials import Failure, StudyRecord, TrialKind, TrialRecord
from storage.store import Store
from tuner.cancellation import CancelToken
from tuner.errors import TrialFailed
from tuner.hub import cached_config
from tuner.quality.ask import AskFailed, Target, ask_positions, ask_questions
from tuner.quality.compare import Pairs, Tripwire, compare_positions, pair
from tuner.quality.harness import HarnessTask
from tuner.quality.task import Task, right_answers
from tuner.scoring.goals import Slo
from tuner.specs import LaunchSpec, Limits, ModelRef, TrialSpec
from tuner.workloads.spec import ClosedLoop

if TYPE_CHECKING:  # the records of checked answers are read where no server is started
    from tuner.engines.vllm.engine import VllmEngine

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
        engine: VllmEngine,
        device: str,
        store: Store,
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
                target = Target(f"{server.url}/v1/completions", variant.model.served_name, server.headers)
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
            answers["right"] = right_answers(self._task.questions, texts)
        return answers

    def _spec(self, variant: Variant, artifacts: Path) -> TrialSpec:
        small = [word for pair in SMALL_BATCHES.items() if not _given(pair[0], variant.argv) for word in pair]
        launch = LaunchSpec(variant.model, tuple(small), variant.argv, dict(variant.environment))
        return TrialSpec("quality", 0, 0, 1, TrialKind.SEARCH, {}, launch, _NO_LOAD, 1, artifacts, self._limits)


def _existing(file: Path) -> Path | None:
    return file if file.exists() else None


def _given(flag: str, argv: tuple[str, ...]) -> bool:
    return any(word.split("=")[0].replace("_", "-") == flag for word in argv)


_LEFT_OUT = {".md", ".png", ".jpg", ".gitattributes", ".gitignore"}


def weights_digest(model: str) -> str:
    """Return a digest of a model's files, or of the name of a hub model that is not on this machine.

    Files of the hub's cache are links to files that are named by their digest; other files are read whole.
    """
    folder = Path(os.path.expanduser(model))
    config = folder / "config.json" if folder.is_dir() else cached_config(model)
    if config is None:
        return sha256(model.encode()).hexdigest()
    files = sorted(file for file in config.parent.iterdir() if file.is_file() and file.suffix not in _LEFT_OUT)
    lines = [f"{file.name} {_file_digest(file.resolve(), *_state(file))}" for file in files]
    return sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _state(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=4096)
def _file_digest(path: Path, size: int, modified: int) -> str:
    """Return the digest of one file; of its size and time of change, it depends for the cache only."""
    if path.parent.name == "blobs":
        return path.name
    with path.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()


TASK_TEXTS = 32
"""How many questions of a task are texts, each with its right answer."""

_TEXTS = Path(__file__).with_name("texts.txt")


def built_in_texts() -> tuple[str, ...]:
    """Return the fixed texts of the tuner: prose, code, data, dialogue, numbers, three languages."""
    return tuple(_TEXTS.read_text(encoding="utf-8").strip().split("\n%\n"))


def texts_of(task: Task | HarnessTask | None) -> tuple[str, ...]:
    """Return the texts: the first questions of a file with their right answers, else the built-in texts."""
    if not isinstance(task, Task):
        return built_in_texts()
    return tuple(each.prompt + each.answer for each in task.questions[:TASK_TEXTS])


FORMAT_FLAGS = frozenset(
    {"--quantization", "-q", "--kv-cache-dtype", "--speculative-config", "--quantization-config", "--hf-overrides"}
)
"""Flags that change answers: the reference is served without them."""

FORMAT_VARIABLES = frozenset({"VLLM_MARLIN_INPUT_DTYPE"})
"""Environment variables that change answers."""


def split_flags(argv: Sequence[str], flags: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the arguments of a server into those without some flags, and these flags with their values.

    A part of a flag's JSON value (`--speculative-config.method=ngram`) belongs to the flag.
    """
    kept: list[str] = []
    taken: list[str] = []
    taking = False
    for word in argv:
        flag, equals, _ = word.partition("=")
        if flag.startswith("-"):
            taking = flag.split(".")[0].replace("_", "-") in flags
        (taken if taking else kept).append(word)
        if equals and flag.startswith("-"):
            taking = False
    return tuple(kept), tuple(taken)


def without_format_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that do not change answers."""
    return {name: value for name, value in environment.items() if name not in FORMAT_VARIABLES}


def formats_of(model: str, argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return what changes the answers of a server, as one line: the same for servers with the same answers.

    Args:
        model: the checkpoint.
        argv: arguments of the server.
        environment: its variables.
    """
    _, taken = split_flags(argv, FORMAT_FLAGS)
    variables = sorted(f"{name}={value}" for name, value in environment.items() if name in FORMAT_VARIABLES)
    return " ".join([model, *taken, *variables])


CHECKED = "checked_answers"
"""Name of the study's fact: results of `fact_of`, by the `formats_of` of a server."""


def fact_of(quality: Quality, slo: Slo) -> dict[str, Any]:
    """Return a comparison as plain JSON."""
    pairs, tripwire = quality.pairs, quality.tripwire
    found: dict[str, Any] = {"agreement": tripwire.agreement, "kl": tripwire.kl, "broken": tripwire.broken}
    if pairs is not None:
        found |= {"slo": str(slo), "verdict": pairs.verdict(slo.threshold).value, "questions": pairs.questions}
        found |= {"quality": pairs.quality, "interval": list(pairs.interval)}
    return found


def line_of(fact: Mapping[str, Any], names: str) -> str:
    """Return the result in one line.

    Args:
        fact: from `fact_of`.
        names: the choices that may change the answers.
    """
    tokens = f"{100 * fact['agreement']:.1f} % of the most likely tokens agree, mean KL {fact['kl']:.4f} nats"
    if fact["broken"]:
        return f"BROKEN with {names}: {tokens}"
    if "quality" not in fact:
        return f"compared without questions: with {names}, {tokens}"
    low, high = fact["interval"]
    verdict = fact["verdict"] if fact["verdict"] == "kept" else fact["verdict"].upper()
    shown = f"quality {fact['quality']:.3f} (95 % interval {low:.3f} to {high:.3f}), {fact['questions']} questions"
    return f"{verdict} for {fact['slo']} with {names}: {shown}; {tokens}"


def changed_answers(study: StudyRecord, trial: TrialRecord) -> list[str]:
    """Return the choices of a trial that may change the answers, as `name=value`."""
    declared = study.premise.get("space", {}).get("parameters", {})
    return [
        f"{name}={value}"
        for name, value in trial.config.items()
        if value is not None and declared.get(name, {}).get("changes_answers")
    ]


def checked_answers(study: StudyRecord, trial: TrialRecord) -> Mapping[str, Any] | None:
    """Return the result for a trial's server; None if its answers were not compared."""
    outcome, facts = trial.outcome, study.facts.get(CHECKED, {})
    if outcome is None or not facts or outcome.served is None:
        return None
    return dict(facts).get(formats_of(*outcome.served, outcome.environment))


def is_checked(study: StudyRecord, trial: TrialRecord) -> bool:
    """Return whether the answers of a trial's server were compared, by the study or after it."""
    known = trial.outcome is not None and trial.outcome.metric("quality") is not None
    return known or checked_answers(study, trial) is not None


def check_command(study: StudyRecord, trial: TrialRecord) -> str:
    """Return the command that compares the answers of a trial with those of the unquantized model."""
    number = "" if (study.conclusion or {}).get("winner") == trial.number else f" --trial {trial.number}"
    return f"tuner quality --study {shlex.quote(study.name)}{number}"
