"""Questions of lm-evaluation-harness: its program asks a server for completions and grades the answers.

https://github.com/EleutherAI/lm-evaluation-harness, model type `local-completions`; the format of its sample files is
that of versions 0.4.9 to 0.4.13.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tuner.cancellation import CancelToken
from tuner.engines.server.traffic import Job
from tuner.errors import SettingError
from tuner.quality.ask import AT_A_TIME, AskFailed, Target

PREFIX = "lm-eval:"
PROGRAM = "lm_eval"

METRICS = ("exact_match", "acc", "acc_norm", "pass@1")
"""Metrics of a task that say of each answer whether it is right; the first that the task has counts."""

_TAIL = 2000
_POLL_S = 0.2

StartProgram = Callable[[Sequence[str], Mapping[str, str], Path, Path], Job]
"""Starts a recorded process from its words, environment, log and working folder."""


@dataclass(frozen=True)
class HarnessTask:
    """Tasks of the installed lm-evaluation-harness: names, or YAML files of the user's own tasks."""

    names: tuple[str, ...]
    program: Path

    @property
    def digest(self) -> str:
        """A digest of the program's version, the names of tasks, and the content of YAML files."""
        parts = [Path(name).read_text(encoding="utf-8") if _is_file(name) else name for name in self.names]
        return sha256("\0".join([PREFIX, self._version(), *parts]).encode()).hexdigest()

    def _version(self) -> str:
        """Return the version by the name of the package's folder, beside the program; empty if it is not there."""
        found = self.program.parent.parent.glob("lib/python*/site-packages/lm_eval-*.dist-info")
        return next((folder.name for folder in found), "")

    def right(
        self, start: StartProgram, target: Target, tokenizer: str, folder: Path, cancelled: CancelToken
    ) -> list[bool]:
        """Return which answers of a server are right, in the order of tasks and questions.

        Args:
            start: starts the program.
            target: the server.
            tokenizer: its model's tokenizer, a folder or a hub name.
            folder: of the program's log and results.
            cancelled: ends the program.

        Raises:
            AskFailed: if the program fails or is cancelled, or a task has no metric that is right or wrong.
        """
        results = folder / "lm-eval"
        shutil.rmtree(results, ignore_errors=True)
        log = folder / "lm-eval.log"
        log.unlink(missing_ok=True)
        job = start(self._command(target, tokenizer, results), _environment(target), log, Path.cwd())
        try:
            while not job.wait(_POLL_S):
                if cancelled.is_set():
                    raise AskFailed("cancelled")
        finally:
            job.cancel()
        if job.exit_code != 0:
            raise AskFailed(f"{PROGRAM} failed: {_last_line(log)}; its log is {log}")
        found = [right for file in sorted(results.rglob("samples_*.jsonl")) for right in graded(file)]
        if not found:
            raise AskFailed(f"{PROGRAM} asked no question; its log is {log}")
        return found

    def _command(self, target: Target, tokenizer: str, results: Path) -> list[str]:
        settings = {
            "model": target.model,
            "base_url": target.url,
            "tokenizer": tokenizer,
            "num_concurrent": str(AT_A_TIME),
            "max_retries": "3",
        }
        arguments = ",".join(f"{name}={value}" for name, value in settings.items())
        return [
            *(os.fspath(self.program), "run", "--model", "local-completions", "--model_args", arguments),
            *("--tasks", ",".join(self.names), "--gen_kwargs", "temperature=0"),
            *("--output_path", os.fspath(results), "--log_samples"),
        ]


def harness_task(text: str) -> HarnessTask:
    """Return the tasks of `lm-eval:NAME[,NAME…]`; a name may be a YAML file.

    Raises:
        SettingError: about `quality_task`, without a name, for a file that does not exist, and without the program.
    """
    names = tuple(name for name in text.removeprefix(PREFIX).split(",") if name)
    remedy = "give for example lm-eval:gsm8k"
    if not names:
        raise SettingError("quality_task", text, "it names no task of lm-evaluation-harness", remedy)
    for name in names:
        if name.endswith((".yaml", ".yml")) and not _is_file(name):
            raise SettingError("quality_task", text, f"there is no file {name!r}", remedy)
    beside = os.fspath(Path(sys.executable).parent)
    program = shutil.which(PROGRAM, path=os.pathsep.join([os.environ.get("PATH", ""), beside]))
    if program is None:
        rule = f"lm-evaluation-harness is not installed: no program {PROGRAM} on PATH"
        raise SettingError("quality_task", text, rule, "install it: pip install 'lm-eval[api]' transformers")
    return HarnessTask(names, Path(program))


def graded(file: Path) -> Iterator[bool]:
    """Yield whether each answer of a file of samples is right, in the order of the questions.

    Of several filters of one task, such as strict and flexible matches, the first one counts.

    Raises:
        AskFailed: for a file that cannot be read, and a task without a metric that is right or wrong.
    """
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        first = [row for row in rows if row.get("filter") == rows[0].get("filter")]
        yield from (_is_right(row) for row in sorted(first, key=lambda row: int(row["doc_id"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AskFailed(f"{PROGRAM} wrote samples that cannot be read: {error!r} in {file}") from None


def _is_right(row: Mapping[str, Any]) -> bool:
    """Return whether one answer is right.

    Raises:
        AskFailed: if none of `METRICS` is in it, or its value is neither 0 nor 1.
    """
    for name in METRICS:
        if name in row:
            value = row[name]
            if value in (0, 1):
                return bool(value)
    has = ", ".join(map(str, row.get("metrics", ()))) or "none"
    raise AskFailed(f"a task has no metric that is right or wrong: it has {has}, needed is one of {', '.join(METRICS)}")


def _environment(target: Target) -> dict[str, str]:
    """Return the program's environment, with the server's key where it needs one."""
    key = target.headers.get("Authorization", "").removeprefix("Bearer ")
    return {**os.environ, "OPENAI_API_KEY": key or "none", "TOKENIZERS_PARALLELISM": "false"}


def _is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) and Path(name).is_file()


def _last_line(log: Path) -> str:
    lines = log.read_bytes()[-_TAIL:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else "no output"
