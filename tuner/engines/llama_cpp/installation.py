"""Find llama.cpp's server, its version, its flags and its devices, without starting it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tuner.engines.llama_cpp.kind import LAUNCHER
from tuner.engines.server.programs import named_program
from tuner.errors import SettingError, UserError

PROGRAM = "llama-server"
VARIABLE = "TUNER_LLAMA_SERVER"
PACKAGE = "xllamacpp"

_ANSWER_S = 60.0
_VERSION = re.compile(r"^version: *(\d[\w.]*)", re.MULTILINE)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_DEVICE = re.compile(r"^ +(\w+): .+\(\d+ MiB", re.MULTILINE)
_NAME_THE_PROGRAM = "name the llama-server program itself"


def find_server(given: str | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the server to run: the given one, TUNER_LLAMA_SERVER, the one on PATH, or that of the package `xllamacpp`.

    Raises:
        UserError: if there is none, or the named one cannot be run.
    """
    environment = os.environ if environment is None else environment
    if given:
        return named_program(
            given, environment, lambda rule: SettingError("llama_server", given, rule, _NAME_THE_PROGRAM)
        )
    named = environment.get(VARIABLE)
    if named:
        return named_program(
            named, environment, lambda rule: UserError(f"{VARIABLE}={named!r}: {rule}; {_NAME_THE_PROGRAM}")
        )
    on_path = shutil.which(PROGRAM, path=environment.get("PATH"))
    if on_path is not None:
        return Path(on_path).absolute()
    beside = Path(sys.executable).with_name(LAUNCHER)
    if importlib.util.find_spec(PACKAGE) is not None and os.access(beside, os.X_OK):
        return beside
    remedy = f"`pip install xllamacpp`, or put {PROGRAM} on PATH or its path into {VARIABLE}"
    rule = f"no llama.cpp found: no {PROGRAM} on PATH, and the package {PACKAGE} is not installed"
    raise SettingError("llama_server", None, rule, remedy)


@dataclass(frozen=True)
class Installation:
    """One installed server: its version, its long flags (None: unknown), and the names of its GPUs."""

    executable: Path
    version: str
    flags: frozenset[str] | None
    gpus: tuple[str, ...]


@cache
def installation(executable: Path) -> Installation:
    """Return the installation of an executable; it is run for its version, its help and its devices.

    Raises:
        UserError: if the executable prints no version.
    """
    text = _output(executable, "--version")
    version = _VERSION.search(text)
    if version is None:
        last = (text.strip().splitlines() or ["no output"])[-1]
        raise UserError(f"{executable} --version prints no version ({last}); is it {PROGRAM}?")
    flags = frozenset(_FLAG.findall(_output(executable, "--help")))
    gpus = tuple(_DEVICE.findall(_output(executable, "--list-devices")))
    return Installation(executable, version[1], flags or None, gpus)


def _output(executable: Path, flag: str) -> str:
    """Return what the program prints for a flag, standard error included.

    Raises:
        UserError: if it does not run.
    """
    try:
        done = subprocess.run(
            [executable, flag],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{executable} {flag} did not run ({error}); is it {PROGRAM}?") from None
    return done.stdout
