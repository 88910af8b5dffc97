"""Find the program of a command, and its version if it has one."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

from tuner.errors import SettingError

UNKNOWN = "unknown"
"""The version of a program that does not print one."""

ANSWER_S = 10.0
"""How long a program may take to print its version."""

_INTERPRETER = re.compile(
    r"(?:ba|da|z|k|fi)?sh|python[\d.]*|pypy[\d.]*|node|ruby|perl|java|env|uv|uvx|docker|podman|apptainer|"
    r"nice|taskset|numactl|timeout|setsid|stdbuf|mpirun"
)
"""Programs that start another one: their own version says nothing about the server."""

_VERSION = re.compile(r"\d+(?:\.\d+)+[\w.+-]*|(?<=version: )\d[\w.]*")
_SAFE_NAME = re.compile(r"[A-Za-z0-9_.+-]+")


def find_program(name: str) -> Path:
    """Return the absolute path of a command's program.

    Raises:
        SettingError: if it does not exist, cannot be run, or has a name that no script can hold.
    """
    found = shutil.which(os.path.expanduser(name))
    if found is None:
        rule = "the file is not executable" if Path(name).is_file() else "there is no such program"
        raise SettingError("server_command", name, rule, "name a program on PATH, or its file")
    if not _SAFE_NAME.fullmatch(Path(found).name):
        rule = "the name of the program's file has other characters than letters, digits and _ . + -"
        raise SettingError("server_command", name, rule, "rename it, or link to it")
    return Path(found).absolute()


@cache
def version_of(program: Path) -> str:
    """Return the version that a program prints for `--version` within `ANSWER_S` seconds; else `UNKNOWN`."""
    if _INTERPRETER.fullmatch(program.name):
        return UNKNOWN
    try:
        process = subprocess.Popen(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError:
        return UNKNOWN
    try:
        text, _ = process.communicate(timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        return UNKNOWN
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    found = _VERSION.search(text) if process.returncode == 0 else None
    return UNKNOWN if found is None else found[0]
