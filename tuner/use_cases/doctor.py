"""List what is installed on this machine, and what a study would run on it."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Any

from search_spaces.schema import VLLM
from tuner import __version__, gpu
from tuner.engines.kind import EngineKind
from tuner.engines.kinds import kinds
from tuner.engines.openai.kind import OPENAI
from tuner.errors import UserError
from tuner.files import home
from tuner.processes.records import ProcessRecords
from tuner.use_cases.engines import wants_simulation

PACKAGES = ("optuna", "ray", "mlflow-skinny", "sqlalchemy", "pandas")


def examine(vllm: str | None, server_command: str | None) -> dict[str, Any]:
    """Return what is installed and what `tuner optimize` would run, as plain JSON, with options as `{name}`.

    Args:
        vllm: the vllm executable; None: the one of this machine.
        server_command: a user's command, whose program is looked at, too.

    Raises:
        UserError: for a command that no study can start.
    """
    engines: dict[str, Any] = {}
    problem, devices = None, gpu.devices()
    for kind in engines_without_command():
        facts = _facts(kind, vllm if kind.name == VLLM else None)
        if kind.name == VLLM:  # what the whole machine lacks, if it lacks this one
            problem = facts.pop(fact_name(kind, "problem"))
            facts.setdefault(fact_name(kind, "unmet"), None)
        engines |= facts
    return {
        "tuner": __version__,
        "packages": [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES],
        "host": gpu.host_facts(),
        "gpus": [f"{d.name} {d.memory_total_gib:.1f} GiB, driver {d.driver}" for d in devices],
        **engines,
        "home": str(home()),
        "started_processes": [f"{r.process.pid} {r.label}" for r in ProcessRecords(home() / "processes").all()],
        "would_run": _would_run(bool(devices), vllm, problem),
        "problem": problem if devices or vllm else None,
        **_command(server_command),
    }


def engines_without_command() -> list[EngineKind]:
    """Return the engines that are found without a user's command."""
    return [kind for kind in kinds().values() if kind is not OPENAI]


def program_fact(kind: EngineKind) -> str:
    """Return the name of the fact about an engine's program."""
    return kind.setting or fact_name(kind)


def fact_name(kind: EngineKind, *more: str) -> str:
    """Return the name of a fact about an engine, such as `llama_cpp_version`."""
    return "_".join((re.sub(r"\W", "_", kind.name), *more))


def _facts(kind: EngineKind, given: str | None) -> dict[str, Any]:
    """Return an engine's program and its facts; None where there is none, and then why."""
    found: dict[str, Any] = {program_fact(kind): None, fact_name(kind, "version"): None}
    problem = None
    try:
        installed = kind.find(given)
        found[program_fact(kind)] = str(installed.executable)
        for name, value in kind.facts(installed, home()):
            found[fact_name(kind, name)] = value
    except UserError as error:
        problem = str(error)
    return {**found, fact_name(kind, "problem"): problem}


def _command(text: str | None) -> dict[str, Any]:
    """Return the program of a command and its version; nothing without a command."""
    if text is None:
        return {}
    found = OPENAI.find(text)
    return {
        "server_program": str(found.executable),
        "server_program_version": dict(OPENAI.facts(found, home()))["version"],
    }


def _would_run(gpus: bool, vllm: str | None, problem: str | None) -> str:
    """Return what `tuner optimize` without options runs here."""
    if wants_simulation("auto", vllm, None):
        measured = "" if problem is not None else "; use {engine} vllm to measure with the installed vLLM"
        return f"a simulated vLLM: there is no GPU{measured}"
    if problem is not None:
        return "nothing: there is no vLLM"
    return "vLLM on every GPU" if gpus else "vLLM on the CPU (with a CPU build), one worker"
