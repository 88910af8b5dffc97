"""Shared parts of the formats: the files that a format writes, their comments, the packages that flags need, errors.

Some flags of vLLM need packages that vLLM's images lack, so a container installs these packages before it starts. The
version of a package is the one that vLLM names in its message for the missing package. The package's folder has the
version in its name; `pip` fills another folder first, so that an interrupted installation leaves no folder that looks
complete.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from records.trials import Provenance
from search_spaces.argv import object_of, one_spelling
from search_spaces.render import data_parallel_size
from search_spaces.schema import VLLM
from search_spaces.yaml_file import plain_yaml
from tuner.engines.vllm.kind import INSTANCES
from tuner.errors import SettingError
from tuner.export.deployment import Deployment
from tuner.export.quoting import escape_unprintable
from tuner.processes.secrets import REFERENCE

SUFFIX_DECODING = "arctic-inference==0.1.1"
LMCACHE = "lmcache"

_PATH = "PYTHONPATH"
_INSTALL = (
    'test -d "$1" || { python3 -m pip install --no-cache-dir --no-deps --upgrade --target "$1.new" "$2" && '
    'mv "$1.new" "$1"; }'
)


def packages_of(deployment: Deployment) -> tuple[str, ...]:
    """Return what `pip install` needs beside vLLM for the server's flags."""
    if deployment.program.engine != VLLM:
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
    if deployment.program == INSTANCES:
        found.append(f"{deployment.command[0]} is a program of the tuner; it needs haproxy and vllm")
    return found


PORT = 8000
USER_ID = 1000
"""User and group that run a container."""

CACHE = "/cache"
"""Folder of a container with the model's weights and the compilers' caches."""

HF_TOKEN = "HF_TOKEN"
"""The variable with the token for gated models of Hugging Face's hub."""

_NUMBER = re.compile(r"\d+(\.\d*)?")


@dataclass(frozen=True)
class File:
    """A file of an export.

    Attributes:
        text: its content.
        suffix: what replaces the suffix of the path that the user chose, such as `.env`; None: the path itself.
        mode: permission bits; None: as the umask allows.
    """

    text: str
    suffix: str | None = None
    mode: int | None = None


def header_rows(deployment: Deployment) -> list[tuple[str, str]]:
    """Return labels with texts: study, verdict, numbers, SLOs, answers, flag effects, engine, hardware, date."""
    executable = f" ({deployment.executable})" if deployment.executable else ""
    return [
        ("study", f"{deployment.study}, trial {deployment.trial}"),
        ("verdict", deployment.verdict),
        ("model", deployment.model),
        *((deployment.provenance.value, f"{label}: {value}") for label, value in deployment.numbers),
        *(("SLO", str(slo)) for slo in deployment.slos),
        *([] if deployment.answers is None else [("answers", deployment.answers)]),
        *(("missed", line) for line in deployment.missed),
        *(("flags", line) for line in deployment.flag_effects),
        (deployment.program.title, deployment.vllm_version + executable),
        ("GPU", deployment.device),
        *([("driver", " ".join(deployment.drivers))] if deployment.drivers else []),
        ("date", deployment.date.isoformat()),
    ]


def header_lines(deployment: Deployment, title: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return the lines of a comment: warnings, a title and rows, each escaped to one line."""
    simulated = deployment.provenance is Provenance.SIMULATED
    warning = ["# Simulated, not measured: the numbers below are predictions of the simulator."] if simulated else []
    if deployment.missed:
        warning.append("# This server does NOT meet the SLOs of its study; the lines below say by how much.")
    lines = (f"# {escape_unprintable(f'{label:<10}{text}')}" for label, text in rows)
    return [*warning, f"# {escape_unprintable(title)}", "#", *lines]


def heading(deployment: Deployment, title: str, notes: Sequence[str] = ()) -> str:
    """Return the comment that opens a file: provenance, numbers, flags with their effects, start-up, notes."""
    rows = header_rows(deployment)
    if deployment.startup_s is None:
        start = f"not recorded; the limit is {deployment.start_limit_s} s"
    else:
        how = deployment.provenance.value
        start = f"{deployment.startup_s:.0f} s {how}; the limit is {deployment.start_limit_s} s"
    lines = [*rows, ("start-up", start), *(("note", note) for note in notes)]
    return "\n".join([*header_lines(deployment, title, lines), ""])


def yaml_documents(head: str, *documents: Mapping[str, Any]) -> str:
    """Return YAML documents under a comment."""
    return head + "---\n".join(plain_yaml(each) for each in documents)


def refused(name: str, rule: str) -> SettingError:
    """Return the error for a deployment that a format cannot hold."""
    return SettingError("format", name, rule, "choose another format, such as script")


def split_references(text: str, references: frozenset[str]) -> list[tuple[bool, str]]:
    """Return the parts of a text in order: (True, name) for a reference to one of the variables, else (False, text)."""
    parts: list[tuple[bool, str]] = []
    position = 0
    for match in REFERENCE.finditer(text):
        if match[1] in references:
            parts += [(False, text[position : match.start()]), (True, match[1])]
            position = match.end()
    return [part for part in (*parts, (False, text[position:])) if part[0] or part[1]]


def container_image(deployment: Deployment) -> str:
    """Return vLLM's image of the study's version; none has the tag `latest`.

    Images for the CPU are on Docker Hub from 0.20 on, and on Amazon's public registry before.
    """
    version = deployment.public_version
    if not deployment.on_cpu:
        return f"vllm/vllm-openai:v{version}"
    parts = version.split(".")
    early = parts[0] == "0" and len(parts) > 1 and parts[1].isdecimal() and int(parts[1]) < 20
    return f"{'public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo' if early else 'vllm/vllm-openai-cpu'}:v{version}"


def container_environment(deployment: Deployment) -> dict[str, str]:
    """Return the variables of a container: caches in its volume, a user's name, and those of the study.

    PyTorch reads the user's name for its cache's folder, and a user id without a name has none.
    """
    own = {"HOME": CACHE, "USER": "vllm", "HF_HOME": f"{CACHE}/huggingface", "VLLM_CACHE_ROOT": f"{CACHE}/vllm"}
    return {**own, **with_packages(portable(deployment), packages_of(deployment), CACHE)}


def portable(deployment: Deployment) -> dict[str, str]:
    """Return the study's variables without those that name a path of the machine that measured."""
    return {name: value for name, value in deployment.variables.items() if not value.startswith("/")}


def left_out_notes(deployment: Deployment) -> list[str]:
    """Return which variables are left out, and what replaces them."""
    kept = portable(deployment)
    return [
        f"left out {name}={value}, a path of the machine that measured; to have its effect, copy it into the "
        "container and set the variable to its place there"
        for name, value in deployment.variables.items()
        if name not in kept
    ]


def listening() -> tuple[str, ...]:
    """Return the words that let a server in a container accept connections from outside."""
    return ("--host", "0.0.0.0", "--port", str(PORT))


def shared_memory_gib(deployment: Deployment) -> int:
    """Return the limit of /dev/shm in GiB: processes exchange tensors there, and vLLM keeps offloaded blocks there."""
    return (16 if deployment.gpus_of_server > 1 else 8) + math.ceil(offloaded_gib(deployment))


def offloaded_gib(deployment: Deployment) -> float:
    """Return the GiB of the host's memory for KV cache blocks of one server; each of its engines has its own."""
    text = deployment.last_value("--kv-offloading-size") or ""
    return float(text) * data_parallel_size(deployment.flag_words) if _NUMBER.fullmatch(text) else 0.0


def reads_hub(deployment: Deployment) -> bool:
    """Return whether the server loads its model from a hub with no token that the study knows."""
    return deployment.model_folder is None and HF_TOKEN not in {*deployment.variables, *deployment.references}


def check_container(deployment: Deployment, name: str) -> None:
    """Refuse a server that containers cannot run.

    Raises:
        SettingError: for instances that shared a GPU or the cores of one machine, and for a package of unknown version.
    """
    if LMCACHE in packages_of(deployment):
        raise refused(name, "vLLM's image may lack LMCache, and the study did not record its version")
    if deployment.shares_gpus:
        shared = "the cores of one machine" if deployment.on_cpu else f"{deployment.gpus} GPU"
        several = "" if deployment.on_cpu or deployment.gpus == 1 else "s"
        rule = f"replicas share no GPU, and the {deployment.instances} instances of this trial shared {shared}{several}"
        raise refused(name, rule)
