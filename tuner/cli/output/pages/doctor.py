"""The page of `tuner doctor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from tuner.cli.output.parts import Rows, labelled, show
from tuner.use_cases.devices import NodeReport

HOST_LABELS = {
    "cpu": "CPU",
    "cores_physical": "physical cores",
    "cores": "logical cores",
    "cores_usable": "cores for this process",
    "memory_gib": "memory, GiB",
    "python": "Python",
    "platform": "system",
    "host": "host name",
}

SHOWN_UNMET = 5


def print_doctor(facts: Mapping[str, Any]) -> None:
    """Print the facts in sections: the tuner, the machine, the engines, and what would run.

    Args:
        facts: as `tuner doctor --json` prints them.
    """
    host: Rows = [(HOST_LABELS.get(name, name), str(value)) for name, value in facts["host"].items()]
    gpus: Rows = [("GPU", gpu) for gpu in facts["gpus"]] or [("GPUs", "none")]
    left: Rows = [("left running", process) for process in facts["started_processes"]]
    vllm: Rows = [("executable", facts["vllm"] or "none found"), ("version", facts["vllm_version"] or "unknown")]
    llama_cpp: Rows = [("executable", facts["llama_server"] or "none found")]
    if facts["llama_server"]:
        gpus_used = ", ".join(facts["llama_cpp_gpus"]) or "the CPU"
        llama_cpp += [("version", facts["llama_cpp_version"]), ("can use", gpus_used)]
    sections: dict[str, Rows] = {
        f"tuner {facts['tuner']}": [("packages", ", ".join(facts["packages"])), ("caches and records", facts["home"])],
        "this machine": [*host, *gpus],
        "vLLM": [*vllm, *_unmet(facts["vllm_unmet"])] if facts["vllm"] else vllm[:1],
        "llama.cpp": llama_cpp,
        "SGLang": _sglang(facts),
        "TensorRT-LLM": _tensorrt_llm(facts),
        **_command(facts),
        "processes of earlier runs": left or [("left running", "none")],
        "`tuner optimize` here": [("runs", facts["would_run"])],
    }
    if facts["problem"] is not None:
        sections["`tuner optimize` here"].append(("problem", facts["problem"]))
    for title, rows in sections.items():
        show(Text(title, style="bold"), labelled(rows, indent=2))


def _sglang(facts: Mapping[str, Any]) -> Rows:
    if facts["sglang"] is None:
        return [("Python", "none found")]
    return [("Python", facts["sglang"]), ("version", facts["sglang_version"]), *_unmet(facts["sglang_unmet"])]


def _unmet(lines: Sequence[str] | None) -> Rows:
    """Return requirements that an engine's environment does not meet, the first ones of many."""
    if not lines:
        return []
    more = len(lines) - SHOWN_UNMET
    rows = list(lines[:SHOWN_UNMET]) + ([f"{more} more, in --json"] if more > 0 else [])
    return [("unmet requirements" if number == 0 else "", line) for number, line in enumerate(rows)]


def _tensorrt_llm(facts: Mapping[str, Any]) -> Rows:
    if facts["trtllm_serve"] is None:
        return [("executable", "none found")]
    return [("executable", facts["trtllm_serve"]), ("version", facts["tensorrt_llm_version"])]


def _command(facts: Mapping[str, Any]) -> dict[str, Rows]:
    """Return the section of a server's command, if one is given."""
    if "server_program" not in facts:
        return {}
    return {"command": [("executable", facts["server_program"]), ("version", facts["server_program_version"])]}


def print_nodes(reports: Sequence[NodeReport]) -> None:
    """Print the nodes of a cluster, each in a section."""
    for report in reports:
        facts = report.facts
        rows: Rows = [
            ("GPUs", ", ".join(facts.gpus) or "none"),
            ("vLLM", f"{facts.vllm_version or 'unknown version'} at {facts.vllm}" if facts.vllm else "none found"),
            ("tuner", facts.tuner),
            ("memory", f"{facts.memory_gib:.1f} GiB"),
            ("free disk", f"{facts.free_gib:.1f} GiB"),
            ("model cache", facts.model_cache or "none; models are downloaded at the first trial"),
            *(("problem", problem) for problem in report.problems),
        ]
        show(Text(f"node {facts.host}", style="bold"), labelled(rows, indent=2))
