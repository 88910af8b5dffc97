"""Find `trtllm-serve`, its Python, its version, and its flags and options, without starting a server."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tuner.engines.server.flags import ServeFlags, flags_from_dump, load_flags, write_dump
from tuner.engines.server.programs import interpreter_of, named_program
from tuner.errors import SettingError, UserError

ENGINE = "TensorRT-LLM"
PROGRAM = "trtllm-serve"
VARIABLE = "TUNER_TRTLLM_SERVE"
PROBE = Path(__file__).with_name("probe.py")

_ENTRY_POINT = b"tensorrt_llm.commands.serve"
_PROBE_S = 120.0
_FLAGS_S = 600.0
_NAME_THE_PROGRAM = "name the trtllm-serve of its environment, such as VENV/bin/trtllm-serve"


def find_server(given: str | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the `trtllm-serve` to use: the given one, TUNER_TRTLLM_SERVE, or the one on PATH.

    Raises:
        UserError: if there is none, or the named one cannot be run.
    """
    environment = os.environ if environment is None else environment
    if given:
        return named_program(
            given, environment, lambda rule: SettingError("trtllm_serve", given, rule, _NAME_THE_PROGRAM)
        )
    named = environment.get(VARIABLE)
    if named:
        return named_program(
            named, environment, lambda rule: UserError(f"{VARIABLE}={named!r}: {rule}; {_NAME_THE_PROGRAM}")
        )
    found = shutil.which(PROGRAM, path=environment.get("PATH"))
    if found is not None:
        return Path(found).absolute()
    remedy = (
        "install one by NVIDIA's guide in an environment of its own, or run the tuner in NVIDIA's image, and put the "
        f"program's path into {VARIABLE}"
    )
    raise SettingError("trtllm_serve", None, f"no {ENGINE} found: no {PROGRAM} on PATH", remedy)


@dataclass(frozen=True)
class Installation:
    """One installed TensorRT-LLM: its program and Python, its version, and packages of `probe.PACKAGES` beside it."""

    executable: Path
    python: Path
    version: str
    packages: frozenset[str]

    def flags(self, home: Path) -> ServeFlags | None:
        """Return the flags and options of the installed version, cached in `home`; None if it cannot be imported.

        The first call takes the time of an import, 20 s and more.
        """
        text = f"{self.executable}|{self.executable.stat().st_mtime_ns}|{self.version}"
        path = home / "tensorrt_llm" / f"flags-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        cached = load_flags(path, ENGINE)
        if cached is not None:
            return cached
        try:
            dump = _probed(self.python, _FLAGS_S, "--flags")
        except UserError:
            return None
        write_dump(path, {"flags": dump["flags"]})
        return flags_from_dump(dump["flags"], ENGINE)


@cache
def installation(executable: Path) -> Installation:
    """Return the installation of a program.

    Raises:
        UserError: if it is no console script of TensorRT-LLM, or its Python does not have it.
    """
    python = interpreter_of(executable, _ENTRY_POINT)
    if python is None:
        raise UserError(f"{executable} is not the script that {ENGINE} installs; {_NAME_THE_PROGRAM}")
    found = _probed(python, _PROBE_S)
    if found["version"] is None:
        raise UserError(f"{python} has no {ENGINE}; {_NAME_THE_PROGRAM}")
    return Installation(executable, python, str(found["version"]), frozenset(found["packages"]))


def _probed(python: Path, limit_s: float, *arguments: str) -> dict[str, Any]:
    """Return what the probe prints as its last line.

    Raises:
        UserError: if it does not run.
    """
    try:
        done = subprocess.run(
            [python, PROBE, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{python} does not run ({error}); {_NAME_THE_PROGRAM}") from None
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(f"{python} does not answer as a Python ({last}); {_NAME_THE_PROGRAM}") from None
    return found
