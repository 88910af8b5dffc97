"""Find vLLM: the executable, the interpreter that runs it, and its version, without importing any of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import UserError

PROBE = Path(__file__).parent / "resident" / "probe.py"
_PROBE_S = 60.0
_VERSION_S = 300.0
_HEAD_BYTES = 4096
_ENTRY_POINT = b"vllm.entrypoints.cli.main"
_VERSION = re.compile(r"^\d+\.\d+\S*$", re.MULTILINE)
_TRAMPOLINE = re.compile(r"^'''exec' (.+) \"\$0\" \"\$@\"$")


def find_executable(given: str | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the `vllm` to use: the one given, TUNER_VLLM, the one on PATH, or the one beside this interpreter.

    Raises:
        UserError: when there is none, or the one that was named cannot be run.
    """
    environment = os.environ if environment is None else environment
    for source, name in (("--vllm", given), ("TUNER_VLLM", environment.get("TUNER_VLLM"))):
        if name:
            return _named(source, name, environment)
    on_path = shutil.which("vllm", path=environment.get("PATH"))
    beside = Path(sys.executable).with_name("vllm")
    if on_path is not None:
        return Path(on_path).absolute()
    if _runs(beside):
        return beside
    raise UserError(
        "no vLLM found: not on PATH and not beside this Python; install one (`pip install vllm` in an environment of "
        "its own; without a GPU: scripts/install_vllm_cpu.sh DIR) and name its executable by --vllm PATH or TUNER_VLLM"
    )


def _named(source: str, name: str, environment: Mapping[str, str]) -> Path:
    found = shutil.which(os.path.expanduser(name), path=environment.get("PATH"))
    if found is None:
        what = "is not executable" if Path(name).exists() else "is not there"
        raise UserError(f"{source} {name!r} {what}; name the `vllm` program itself, such as VENV/bin/vllm")
    return Path(found).absolute()


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def interpreter_of(executable: Path) -> Path | None:
    """Return the Python that runs the console script `vllm`; None for a wrapper or another kind of program.

    Knows the three forms that installers write: a path, `/usr/bin/env python3`, and the `/bin/sh` trampoline for
    paths that are too long or hold spaces.
    """
    try:
        with executable.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    if not head.startswith(b"#!") or _ENTRY_POINT not in head:
        return None
    lines = head.decode("utf-8", "replace").splitlines()
    words = lines[0][2:].strip()
    trampoline = _TRAMPOLINE.match(lines[1].strip()) if len(lines) > 1 else None
    if words == "/bin/sh" and trampoline is not None:
        python = shlex.split(trampoline[1])[0]
    elif Path(words.split()[0]).name == "env":
        python = next((word for word in words.split()[1:] if not word.startswith("-") and "=" not in word), "")
    else:
        python = words if Path(words).exists() else words.split()[0]
    found = shutil.which(python) if python else None
    return Path(found).absolute() if found is not None else None


@dataclass(frozen=True)
class Installation:
    """One installed vLLM. `packages` and `interpreter` are None where the executable is not a plain console script."""

    executable: Path
    interpreter: Path | None
    version: str
    packages: frozenset[str] | None

    @property
    def key(self) -> str:
        """A name for caches: changes with the executable's path, size and time, and with the version."""
        stat = self.executable.stat()
        text = f"{self.executable}|{stat.st_mtime_ns}|{stat.st_size}|{self.version}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def installation(executable: Path, home: Path) -> Installation:
    """Return what is installed, in 0.1 s for a console script; another program is run once and its version cached.

    Raises:
        UserError: when the executable does not tell a version.
    """
    interpreter = interpreter_of(executable)
    probed = _probe(interpreter) if interpreter is not None else None
    if probed is not None and isinstance(probed.get("version"), str):
        return Installation(executable, interpreter, str(probed["version"]), frozenset(_strings(probed["packages"])))
    return Installation(executable, interpreter, _asked(executable, home), None)


def version_of(executable: Path, home: Path) -> str:
    """Return the version of an installed vLLM; see `installation`."""
    return installation(executable, home).version


def _strings(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _probe(interpreter: Path) -> dict[str, object] | None:
    try:
        done = subprocess.run(
            [interpreter, PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        data = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError):
        return None
    return data if isinstance(data, dict) else None


def _asked(executable: Path, home: Path) -> str:
    """Return what `vllm --version` says, from the cache if the executable has not changed."""
    stat = executable.stat()
    identity = f"{executable}|{stat.st_mtime_ns}|{stat.st_size}"
    path = home / "vllm" / "versions.json"
    try:
        known: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        known = {}
    if identity not in known:
        known[identity] = _run_for_version(executable)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"versions-{os.getpid()}.tmp")
        temporary.write_text(json.dumps(known), encoding="utf-8")
        temporary.replace(path)
    return known[identity]


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
        raise UserError(f"{executable} --version tells no version ({last}); run it by hand and mend the installation")
    return str(found[-1])
