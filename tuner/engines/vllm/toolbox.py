"""One worker's access to vLLM beside its servers: the resident helper, the installed flags and plain commands."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.records import Failure, FailureKind, Phase
from tuner.engines.server.failures.classify import classify, error_summary
from tuner.engines.server.flags import ServeFlags, flags_from_dump, load_flags, write_dump
from tuner.engines.server.jobs import Job, PlainJob
from tuner.engines.server.programs import interpreter_of
from tuner.engines.server.tokenizer_library import LibraryTools, find_tokenizer
from tuner.engines.vllm.installation import ENTRY_POINT, Installation
from tuner.engines.vllm.resident_client import ResidentHelper
from tuner.errors import SettingError, trial_failed
from tuner.processes.records import ProcessRecords
from tuner.workloads.spec import Workload
from tuner.workloads.suite import Suite
from tuner.workloads.traffic import Traffic

IMPORT_S = 600.0
INFO_S = 300.0
CHECK_S = 300.0
PROMPTS_S = 600.0
_REFUSALS = frozenset(
    {"ValidationError", "ValueError", "NotImplementedError", "ImportError", "ModuleNotFoundError", "TypeError"}
)
"""Exceptions of vLLM's configuration that make a configuration invalid even if no row of the table has their text."""

_log = logging.getLogger(__name__)


class Toolbox:
    """Runs vLLM's commands and checks for one worker, through the resident helper or, without it, as commands."""

    def __init__(
        self,
        installation: Installation,
        home: Path,
        environment: Mapping[str, str],
        records: ProcessRecords | None = None,
    ) -> None:
        """Start the resident helper if vLLM's interpreter is known.

        Args:
            installation: vLLM.
            home: the folder of caches and process records.
            environment: of vLLM's commands.
            records: where processes are recorded; None: in `home`, for this process alone.
        """
        self.installation = installation
        self.records = records or ProcessRecords(home / "processes")
        self.environment = dict(environment)
        self._folder = home / "vllm"
        self._scratch = self._folder / "resident"
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._name = f"{os.getpid()}-{id(self):x}"
        self._resident: ResidentHelper | None = None
        if installation.interpreter is not None:
            self._resident = ResidentHelper(
                installation.interpreter, self._scratch / f"{self._name}.log", self.environment
            )
        self._flags: ServeFlags | None = None

    @property
    def resident(self) -> ResidentHelper | None:
        """The helper, once it has imported vLLM; None if there is none or it does not work."""
        if self._resident is not None and not self._resident.ready(IMPORT_S):
            _log.warning(
                "vLLM's helper did not start (%s); plain commands are used instead", self._scratch / f"{self._name}.log"
            )
            self._resident.close()
            self._resident = None
        return self._resident

    def flags(self) -> ServeFlags | None:
        """Return the installed parser's flags, from the cache or from vLLM; None if they cannot be read."""
        if self._flags is None:
            path = self._folder / f"flags-{self.installation.key}.json"
            self._flags = load_flags(path) or self._read_flags(path)
        return self._flags

    def _read_flags(self, path: Path) -> ServeFlags | None:
        dump = self._run_task("info", INFO_S)
        if dump is None:
            return None
        write_dump(path, dump)
        return flags_from_dump(dump["flags"])

    def configuration_problem(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> Failure | None:
        """Return why vLLM's parser or configuration refuses `serve …`; None if they accept it or cannot be run.

        Args:
            arguments: the arguments of `vllm`, from `serve` on.
            environment: the server's whole environment.
            log: the file for what vLLM prints during the check.
        """
        answer = self._run_task("check", CHECK_S, log=log, argv=list(arguments), environment=dict(environment))
        if answer is None or answer["ok"]:
            return None
        text = str(answer["text"]).strip()
        if answer["stage"] == "parse":
            line = next((line for line in reversed(text.splitlines()) if "error:" in line), text)
            return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, error_summary(line), line)
        cause = f"{answer['type']}: {text}"
        failure = classify(cause, None, Phase.CHECK)
        if failure.kind is FailureKind.ENGINE_CRASH and answer["type"] in _REFUSALS:
            return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, error_summary(cause), failure.evidence)
        return None if failure.kind is FailureKind.ENGINE_CRASH else failure

    def prompts(self, plan: Path, log: Path) -> list[tuple[str, int, int | None]]:
        """Return each request's prompt, its tokens, and the tokens of the recorded answer if there is one.

        Without a helper, the package `tokenizers` makes them.

        Args:
            plan: the file with the requests, as `resident/prompts.py` describes it.
            log: the file for what the tokenizer's library prints.

        Raises:
            TrialFailed: if there is no tokenizer, or it cannot make prompts of these lengths.
        """
        if self.resident is None:
            return self._library_prompts(plan, log)
        answer = self._run_task("prompts", PROMPTS_S, log=log, plan=str(plan))
        if answer is None:
            message = f"the prompts could not be made in vLLM's interpreter; see {log.name}"
            raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, Phase.BENCHMARK, message)
        if "error" in answer:
            raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, Phase.BENCHMARK, str(answer["error"]))
        return [(str(text), int(tokens), recorded) for text, tokens, recorded in answer["prompts"]]

    def _library_prompts(self, plan: Path, log: Path) -> list[tuple[str, int, int | None]]:
        try:
            name = json.loads(plan.read_text(encoding="utf-8"))["tokenizer"]
            tokenizer = find_tokenizer(name, self.installation.executable)
        except SettingError as error:
            message = f"vLLM's Python cannot make the prompts: {error}"
            raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, Phase.BENCHMARK, message) from None
        return LibraryTools(tokenizer, self.records).prompts(plan, log)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path, cwd: Path) -> Job:
        """Start `vllm ARGUMENTS…` with output to `log`; the caller must wait for the job or cancel it."""
        resident = self.resident
        if resident is None:
            return PlainJob([str(self.installation.executable), *arguments], environment, log, cwd, self.records)
        return resident.run("cli", log, argv=list(arguments), environment=dict(environment), cwd=str(cwd))

    def close(self) -> None:
        """End the helper and the commands that it runs."""
        if self._resident is not None:
            self._resident.close()
            self._resident = None
        for path in self._scratch.glob(f"{self._name}*"):
            path.unlink(missing_ok=True)

    def _run_task(
        self, task: str, timeout_s: float, log: Path | None = None, **request: object
    ) -> dict[str, Any] | None:
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


def check_prompts(workload: Workload, executable: Path, tokenizer: str) -> None:
    """Refuse a vLLM whose Python is not known, unless the package can make the prompts of traffic.

    A closed loop needs none: `vllm bench serve` makes its own.

    Raises:
        SettingError: as `find_tokenizer`.
    """
    if isinstance(workload, Traffic | Suite) and interpreter_of(executable, ENTRY_POINT) is None:
        find_tokenizer(tokenizer, executable)
