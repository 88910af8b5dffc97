"""One worker's access to vLLM: its installation, the resident helper, its flags and the servers' variables."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import logging
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from records.trials import Failure, FailureKind, Phase
from tuner.engines.kind import Found
from tuner.engines.server.devices import visible_gpus
from tuner.engines.server.failures import error_summary
from tuner.engines.server.flags import ServeFlags, cached_flags
from tuner.engines.server.program_engine import find_named, interpreter_of
from tuner.engines.server.python_engine import PythonInstallation, PythonPackage, python_installation
from tuner.engines.server.token_prompts import LibraryTools, find_tokenizer
from tuner.engines.server.traffic import Job, PlainJob
from tuner.engines.server.unmet import unmet_requirements
from tuner.engines.vllm.kind import VLLM, VLLM_VARIABLE
from tuner.engines.vllm.resident_client import ResidentHelper
from tuner.engines.vllm.texts import classify
from tuner.errors import SettingError, UserError, reason_of, trial_failed
from tuner.files import write_atomically
from tuner.processes.records import ProcessRecords
from tuner.workloads.spec import Suite, Workload
from tuner.workloads.traffic import Traffic

_VERSION_S = 600.0
ENTRY_POINT = b"vllm.entrypoints.cli.main"
_VERSION = re.compile(r"^\d+\.\d+\S*$", re.MULTILINE)
TUNED_KERNELS = "VLLM_TUNED_CONFIG_FOLDER"
"""The variable of a folder in which vLLM looks for tuned settings of its kernels, before its own."""
_NAME_THE_PROGRAM = "name the `vllm` program itself, such as VENV/bin/vllm"
PACKAGE = PythonPackage("vLLM", Path(__file__).parent / "resident" / "probe.py", _NAME_THE_PROGRAM)


def find_executable(given: str | None) -> Path:
    """Return the `vllm` to use: the given one, TUNER_VLLM, the one on PATH, or the one beside this interpreter.

    Raises:
        UserError: if there is none, or the named one cannot be run.
    """
    found = find_named("vllm", given, VLLM_VARIABLE, _NAME_THE_PROGRAM, "vllm")
    if found is not None:
        return found
    beside = Path(sys.executable).with_name("vllm")
    if beside.is_file() and os.access(beside, os.X_OK):
        return beside
    remedy = (
        "install one (`pip install vllm` in an environment of its own; without a GPU: `tuner install-vllm {cpu}`) "
        "and put its executable on PATH, or its path into TUNER_VLLM"
    )
    raise SettingError("vllm", None, "no vLLM found: not on PATH and not beside this Python", remedy)


def installation(executable: Path, home: Path) -> PythonInstallation:
    """Return the installation of an executable.

    A console script takes 0.1 s. Any other program is run once for its version, which is then cached in `home`.

    Raises:
        UserError: if the executable prints no version.
    """
    interpreter = interpreter_of(executable, ENTRY_POINT)
    if interpreter is not None:
        with contextlib.suppress(UserError):
            return python_installation(PACKAGE, executable, interpreter)
    return PythonInstallation(PACKAGE, executable, interpreter, _version_by_command(executable, home), None)


def _version_by_command(executable: Path, home: Path) -> str:
    """Return the output of `vllm --version`, from the cache if the executable has not changed."""
    stat = executable.stat()
    identity = f"{executable}|{stat.st_mtime_ns}|{stat.st_size}"
    path = home / "vllm" / "versions.json"
    try:
        versions: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        versions = {}
    if identity not in versions:
        versions[identity] = _run_for_version(executable)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(versions))
    return versions[identity]


def _run_for_version(executable: Path) -> str:
    try:
        done = subprocess.run(
            [executable, "--version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{executable} --version did not run ({reason_of(error)}); is it the `vllm` program?") from None
    found = _VERSION.findall(done.stdout)
    if done.returncode != 0 or not found:
        last = ((done.stderr or done.stdout).strip().splitlines() or ["no output"])[-1]
        raise UserError(
            f"{executable} --version prints no version ({last}); run it by hand and repair the installation"
        )
    return str(found[-1])


IMPORT_S = 600.0
INFO_S = 300.0
CHECK_S = 300.0
PROMPTS_S = 600.0
KEPT_TOKENS = 2**23
"""Tokens of the prompts that are kept for further trials, at most: about 50 MB."""
_REFUSALS = frozenset(
    {"ValidationError", "ValueError", "NotImplementedError", "ImportError", "ModuleNotFoundError", "TypeError"}
)
"""Exceptions of vLLM's configuration that make a configuration invalid even if no row of the table has their text."""

_log = logging.getLogger(__name__)


class Toolbox:
    """Runs vLLM's commands and checks for one worker, through the resident helper or, without it, as commands."""

    def __init__(
        self,
        installation: PythonInstallation,
        home: Path,
        environment: Mapping[str, str],
        records: ProcessRecords | None = None,
        server_variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start the resident helper if vLLM's interpreter is known.

        Args:
            installation: vLLM.
            home: the folder of caches and process records.
            environment: of vLLM's commands.
            records: where processes are recorded; None: in `home`, for this process alone.
            server_variables: those that every server has besides. The helper starts with them, so that its forks equal
                servers that start as commands.
        """
        self.installation = installation
        self.records = records or ProcessRecords(home / "processes")
        self.environment = dict(environment)
        self._folder = home / "vllm"
        self._scratch = self._folder / "resident"
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._name = f"{os.getpid()}-{id(self):x}"
        self._resident: ResidentHelper | None = None
        if installation.python is not None:
            of_helper = {**self.environment, **(server_variables or {})}
            self._resident = ResidentHelper(installation.python, self._scratch / f"{self._name}.log", of_helper)
        self._flags: ServeFlags | None = None
        self._prompts: dict[bytes, list[tuple[str, int, int | None]]] = {}

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
            self._flags = cached_flags(path, VLLM.title, lambda: self._run_task("info", INFO_S))
        return self._flags

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

        They are kept: the windows and benchmarks of a search's trials have the same plans, and a large tokenizer loads
        in seconds, for which the GPU would wait. Without a helper, the package `tokenizers` makes them.

        Args:
            plan: the file with the requests, as `server/prompts/prompts.py` describes it.
            log: the file for what the tokenizer's library prints.

        Raises:
            TrialFailed: if there is no tokenizer, or it cannot make prompts of these lengths.
        """
        key = hashlib.sha256(plan.read_bytes()).digest()
        found = self._prompts.pop(key, None) or self._made_prompts(plan, log)
        self._prompts[key] = found  # as the last one used
        while len(self._prompts) > 1 and sum(_tokens(each) for each in self._prompts.values()) > KEPT_TOKENS:
            del self._prompts[next(iter(self._prompts))]
        return found

    def _made_prompts(self, plan: Path, log: Path) -> list[tuple[str, int, int | None]]:
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


def _tokens(prompts: Sequence[tuple[str, int, int | None]]) -> int:
    return sum(tokens for _, tokens, _ in prompts)


def check_prompts(workload: Workload, executable: Path, tokenizer: str) -> None:
    """Refuse a vLLM whose Python is not known, unless the package can make the prompts of traffic.

    A closed loop needs none: `vllm bench serve` makes its own.

    Raises:
        SettingError: as `find_tokenizer`.
    """
    if isinstance(workload, Traffic | Suite) and interpreter_of(executable, ENTRY_POINT) is None:
        find_tokenizer(tokenizer, executable)


def preserve_compiler_headers(scratch: Path, home: Path) -> None:
    """Link the folder of precompiled C++ headers from the temporary files to `home`, so that they outlive a trial.

    PyTorch puts them into TMPDIR regardless of its cache variables (`torch/_inductor/codecache.py`, `_HEADER_DIR`).
    Compiling them takes each compiled start 3–8 s on two cores.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid_{os.getuid()}"
    name = "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)
    permanent = compiled_folder(home) / "inductor-temporary"
    permanent.mkdir(parents=True, exist_ok=True)
    link = scratch / name
    if not link.is_symlink():
        link.symlink_to(permanent, target_is_directory=True)


HOST_IP = "VLLM_HOST_IP"
"""The variable with the address at which other nodes reach a rank of a server."""


def kernel_folder(home: Path) -> Path:
    """Return the folder of tuned settings of kernels."""
    return home / "vllm" / "kernels"


def compiled_folder(home: Path) -> Path:
    """Return the folder of compiled code, which servers run: where another user may write to it, one of our own."""
    folder = home / "vllm"
    try:
        found = folder.stat()
    except FileNotFoundError:
        return folder
    foreign = found.st_uid != os.getuid() or found.st_mode & stat.S_IWOTH
    return home / f"vllm-{os.getuid()}" if foreign else folder


def own_environment(home: Path, gpus: Sequence[int] = (), scratch: Path | None = None) -> dict[str, str]:
    """Return the variables that the tuner sets for every server: caches, no usage report, tuned kernels, its GPUs.

    Args:
        home: the tuner's folder.
        gpus: NVML's indices of the worker's GPUs; empty on a machine without a GPU.
        scratch: a folder for the temporary files that vLLM leaves behind; the compilers' caches are then in `home`.
    """
    compiled = compiled_folder(home)
    variables = {"VLLM_CACHE_ROOT": str(compiled / "cache"), "VLLM_NO_USAGE_STATS": "1"}
    if scratch is not None:
        caches = {"TORCHINDUCTOR_CACHE_DIR": compiled / "inductor", "TRITON_CACHE_DIR": compiled / "triton"}
        variables |= {name: str(folder) for name, folder in caches.items()} | {"TMPDIR": str(scratch)}
    if any(kernel_folder(home).glob("*.json")):
        variables[TUNED_KERNELS] = str(kernel_folder(home))
    return variables | visible_gpus(gpus)


def find(given: str | None) -> Found:
    """Return the installation that a setting names, or the one of this machine for None; see `EngineKind`."""
    return Found(find_executable(given))


def facts(found: Found, home: Path) -> Iterator[tuple[str, Any]]:
    """Yield what `tuner doctor` shows of an installation; see `EngineKind`."""
    interpreter = interpreter_of(found.executable, ENTRY_POINT)
    yield "unmet", None if interpreter is None else unmet_requirements(interpreter, "vllm")
    yield "version", installation(found.executable, home).version
