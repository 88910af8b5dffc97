"""Packages that flags of vLLM need beside vLLM: vLLM's images lack them, so a container installs them before it starts.

The version is the one that vLLM names in its message for the missing package. The folder has the version in its name;
`pip` fills another one first, so that a step which was interrupted leaves none that looks complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.rendering.words import object_of, one_spelling
from search_spaces.schema import VLLM
from tuner.engines.vllm.kind import INSTANCES
from tuner.export.deployment import Deployment

SUFFIX_DECODING = "arctic-inference==0.1.1"
LMCACHE = "lmcache"

_PATH = "PYTHONPATH"
_INSTALL = (
    'test -d "$1" || { python3 -m pip install --no-cache-dir --no-deps --upgrade --target "$1.new" "$2" && '
    'mv "$1.new" "$1"; }'
)


def packages_of(deployment: Deployment) -> tuple[str, ...]:
    """Return what `pip install` needs beside vLLM for the server's flags."""
    if deployment.script.program.kind != VLLM:
        return ()
    words = one_spelling(deployment.flag_words)
    drafts: Any = object_of("--speculative-config", words)
    suffix = isinstance(drafts, dict) and drafts.get("method") == "suffix"
    lmcache = deployment.last_value("--kv-offloading-backend") == "lmcache"
    return (*((SUFFIX_DECODING,) if suffix else ()), *((LMCACHE,) if lmcache else ()))


def folder_of(package: str, root: str) -> str:
    """Return the folder of a container with a package."""
    return f"{root}/packages/{package.replace('==', '-')}"


def with_packages(environment: Mapping[str, str], packages: tuple[str, ...], root: str) -> dict[str, str]:
    """Return the variables of a container whose Python also reads the packages' folders."""
    if not packages:
        return dict(environment)
    folders = [folder_of(package, root) for package in packages]
    given = environment.get(_PATH)
    return {**environment, _PATH: ":".join([*folders, *([given] if given else [])])}


def install_command(package: str, root: str) -> list[str]:
    """Return the words of a container's step that installs a package once."""
    return ["/bin/sh", "-c", _INSTALL, "install", folder_of(package, root), package]


def installed_notes(deployment: Deployment) -> list[str]:
    """Return what must be installed on a machine where the server's program is started."""
    found = [f"vLLM's environment needs {package}: pip install {package}" for package in packages_of(deployment)]
    if deployment.script.program == INSTANCES:
        found.append(f"{deployment.command[0]} is a program of the tuner; it needs haproxy and vllm")
    return found
