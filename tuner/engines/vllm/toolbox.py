"""What one worker keeps beside its servers: the resident helper, the installed flags, and the fallback without it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.records import Failure, FailureKind, Phase
from tuner.engines.vllm.executable import Installation
from tuner.engines.vllm.failures import classify, one_line
from tuner.engines.vllm.flags import ServeFlags, flags_from_dump, keep_dump, load_flags
from tuner.engines.vllm.resident_client import HelperJob, PlainJob, ResidentHelper
from tuner.errors import trial_failed

IMPORT_S = 300.0
INFO_S = 60.0
CHECK_S = 120.0
PROMPTS_S = 300.0
_SURE = frozenset(
    {"ValidationError", "ValueError", "NotImplementedError", "ImportError", "ModuleNotFoundError", "TypeError"}
)
"""Exceptions of vLLM's configuration that condemn a configuration even if no row of the table knows their text."""

_log = logging.getLogger(__name__)


class Toolbox:
    """Runs vLLM's commands and questions for one worker; by the resident helper if that works, else plainly."""

    def __init__(self, found: Installation, home: Path, environment: Mapping[str, str]) -> None:
        self.found = found
        self.environment = dict(environment)
        self._folder = home / "vllm"
        self._scratch = self._folder / "resident"
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._name = f"{os.getpid()}-{id(self):x}"
        self._resident: ResidentHelper | None = None
        if found.interpreter is not None:
            self._resident = ResidentHelper(found.interpreter, self._scratch / f"{self._name}.log", self.environment)
        self._flags: ServeFlags | None = None

    @property
    def resident(self) -> ResidentHelper | None:
        """The helper once vLLM is imported in it; None if there is none or it does not work."""
        if self._resident is not None and not self._resident.ready(IMPORT_S):
            _log.warning(
                "vLLM's helper did not start (%s); plain commands are used", self._scratch / f"{self._name}.log"
            )
            self._resident.close()
            self._resident = None
        return self._resident

    def flags(self) -> ServeFlags | None:
        """Return the installed parser's flags, from the cache or from vLLM itself; None if they cannot be read."""
        if self._flags is None:
            path = self._folder / f"flags-{self.found.key}.json"
            self._flags = load_flags(path) or self._ask_flags(path)
        return self._flags

    def _ask_flags(self, path: Path) -> ServeFlags | None:
        dump = self._ask("info", INFO_S)
        if dump is None:
            return None
        keep_dump(path, dump)
        return flags_from_dump(dump["flags"])

    def problem(self, words: Sequence[str], environment: Mapping[str, str], log: Path) -> Failure | None:
        """Return what vLLM's own parser and configuration say against `serve …`; None if nothing, or if it cannot tell.

        Args:
            words: the arguments of `vllm`, from `serve` on.
            environment: the server's whole environment.
            log: where vLLM prints while it thinks.
        """
        said = self._ask("check", CHECK_S, log=log, argv=list(words), environment=dict(environment))
        if said is None or said["ok"]:
            return None
        text = str(said["text"]).strip()
        if said["stage"] == "parse":
            line = next((line for line in reversed(text.splitlines()) if "error:" in line), text)
            return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, one_line(line), line)
        cause = f"{said['type']}: {text}"
        failure = classify(cause, None, Phase.CHECK)
        if failure.kind is FailureKind.ENGINE_CRASH and said["type"] in _SURE:
            return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, one_line(cause), failure.evidence)
        return None if failure.kind is FailureKind.ENGINE_CRASH else failure

    def prompts(self, plan: Path, log: Path) -> list[tuple[str, int, int | None]]:
        """Return text, tokens and the recorded answer's tokens of each request that the file `plan` asks for.

        Raises:
            TrialFailed: when there is no helper to make them, or this tokenizer cannot.
        """
        said = self._ask("prompts", PROMPTS_S, log=log, plan=str(plan))
        if said is None:
            message = f"the load's prompts could not be made in vLLM's interpreter; see {log.name}"
            raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, Phase.BENCHMARK, message)
        if "error" in said:
            raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, Phase.BENCHMARK, str(said["error"]))
        return [(str(text), int(tokens), answer) for text, tokens, answer in said["prompts"]]

    def start(self, words: Sequence[str], environment: Mapping[str, str], log: Path, cwd: Path) -> HelperJob:
        """Start `vllm WORDS…`, output to `log`; it must be waited for or cancelled."""
        resident = self.resident
        if resident is None:
            return PlainJob([str(self.found.executable), *words], environment, log, cwd)
        return resident.run("cli", log, argv=list(words), environment=dict(environment), cwd=str(cwd))

    def close(self) -> None:
        """End the helper and what it runs."""
        if self._resident is not None:
            self._resident.close()
            self._resident = None
        for path in self._scratch.glob(f"{self._name}*"):
            path.unlink(missing_ok=True)

    def _ask(self, task: str, timeout_s: float, log: Path | None = None, **request: object) -> dict[str, Any] | None:
        resident = self.resident
        if resident is None:
            return None
        out = self._scratch / f"{self._name}-{task}.json"
        with contextlib.suppress(FileNotFoundError):
            out.unlink()
        job = resident.run(task, log or self._scratch / f"{self._name}-{task}.log", out=str(out), **request)
        if not job.wait(timeout_s):
            job.cancel()
        try:
            answer: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return answer
