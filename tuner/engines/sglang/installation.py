"""Find the Python that has SGLang, SGLang's version and its flags, without starting a server."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tuner.engines.server.flags import ServeFlags, flags_from_dump, load_flags, write_dump
from tuner.engines.server.programs import named_program
from tuner.errors import SettingError, UserError

ENGINE = "SGLang"
PACKAGE = "sglang"
VARIABLE = "TUNER_SGLANG"
PROBE = Path(__file__).with_name("probe.py")

_PROBE_S = 120.0
_FLAGS_S = 600.0
_NAME_THE_PYTHON = "name the Python that has SGLang, such as VENV/bin/python"


def find_python(given: str | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the Python that runs SGLang: the given one, TUNER_SGLANG, this one, or the one beside `sglang` on PATH.

    Raises:
        UserError: if there is none, or the named one cannot be run.
    """
    environment = os.environ if environment is None else environment
    if given:
        return named_program(given, environment, lambda rule: SettingError("sglang", given, rule, _NAME_THE_PYTHON))
    named = environment.get(VARIABLE)
    if named:
        return named_program(
            named, environment, lambda rule: UserError(f"{VARIABLE}={named!r}: {rule}; {_NAME_THE_PYTHON}")
        )
    if importlib.util.find_spec(PACKAGE) is not None:
        return Path(sys.executable)
    script = shutil.which(PACKAGE, path=environment.get("PATH"))
    beside = None if script is None else Path(script).absolute().with_name("python")
    if beside is not None and os.access(beside, os.X_OK):
        return beside
    remedy = f"`pip install {PACKAGE}` in an environment of its own, and put its Python into {VARIABLE}"
    rule = f"no SGLang found: not in this Python, and no {PACKAGE} on PATH"
    raise SettingError("sglang", None, rule, remedy)


@dataclass(frozen=True)
class Installation:
    """One installed SGLang: its Python, its version, and the packages of `probe.PACKAGES` that are beside it."""

    python: Path
    version: str
    packages: frozenset[str]

    def flags(self, home: Path) -> ServeFlags | None:
        """Return the flags of SGLang's own parser, cached in `home`; None if it cannot be imported.

        The first call takes the time of an import, 15 s and more.
        """
        text = f"{self.python}|{self.python.stat().st_mtime_ns}|{self.version}"
        path = home / "sglang" / f"flags-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
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
def installation(python: Path) -> Installation:
    """Return the installation of a Python.

    Raises:
        UserError: if the program is no Python, or has no SGLang.
    """
    found = _probed(python, _PROBE_S)
    if found["version"] is None:
        raise UserError(f"{python} has no SGLang; {_NAME_THE_PYTHON}")
    return Installation(python, str(found["version"]), frozenset(found["packages"]))


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
        raise UserError(f"{python} does not run ({error}); {_NAME_THE_PYTHON}") from None
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(f"{python} does not answer as a Python ({last}); {_NAME_THE_PYTHON}") from None
    return found
