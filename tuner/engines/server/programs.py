"""Find programs, and the Python behind a console script."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tuner.errors import UserError

_HEAD_BYTES = 4096
_PYTHON = re.compile(r"^(python|pypy)")
_TRAMPOLINE = re.compile(r"^'''exec' (.+) \"\$0\" \"\$@\"$")


def named_program(name: str, environment: Mapping[str, str], error: Callable[[str], UserError]) -> Path:
    """Return the path of a program that the user names, a file or one on the PATH.

    Args:
        name: of the program.
        environment: with the PATH.
        error: makes the error from the rule that the name breaks.

    Raises:
        UserError: if it cannot be run.
    """
    found = shutil.which(os.path.expanduser(name), path=environment.get("PATH"))
    if found is None:
        raise error("the file is not executable" if Path(name).exists() else "there is no such file")
    return Path(found).absolute()


def interpreter_of(executable: Path, entry_point: bytes) -> Path | None:
    """Return the Python that runs a console script, such as `vllm`; None for a wrapper or another kind of program.

    The three forms that installers write are supported: a path, `/usr/bin/env python3`, and the `/bin/sh` trampoline
    for paths that are too long or contain spaces. A shell script that runs `python3 -m vllm…` is a wrapper.
    """
    try:
        with executable.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    if not head.startswith(b"#!") or entry_point not in head:
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
    found = shutil.which(python) if _PYTHON.match(Path(python).name) else None
    return Path(found).absolute() if found is not None else None


def read_json(interpreter: Path, program: Path, *arguments: str, limit_s: float) -> object:
    """Return the JSON that a program prints in an interpreter; None if it prints none within `limit_s` seconds."""
    try:
        done = subprocess.run(
            [interpreter, program, *arguments],
            capture_output=True,
            text=True,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError):
        return None
