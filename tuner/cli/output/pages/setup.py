"""The pages of `tuner study presets`, `tuner study space`, `tuner doctor` and `tuner install-vllm`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.text import Text

from search_spaces import ResolvedSpace
from tuner.cli.options import option_of
from tuner.cli.output.parts import Rows, labelled, new_table, show
from tuner.engines.kind import EngineKind
from tuner.errors import EXIT_OURS, SettingError, spelled
from tuner.settings.study import AskedSettings
from tuner.use_cases.devices import NodeReport, check_cluster
from tuner.use_cases.doctor import engines_without_command, examine, fact_name, program_fact
from tuner.use_cases.install_vllm import install_cpu_vllm
from tuner.use_cases.kernels import tune_kernels, untuned_files
from tuner.use_cases.preview import preset_document, slos_of, space_document, space_on_card
from tuner.use_cases.stored import read_study
from tuner.use_cases.tiny_model import make_model
from tuner.workloads.presets import load_preset, preset_names


def print_presets(*, as_json: bool) -> None:
    found = [load_preset(name) for name in preset_names()]
    if as_json:
        print(json.dumps([preset_document(preset) for preset in found], indent=1))
        return
    table = new_table()
    table.add_column("preset, model, card", no_wrap=True)
    table.add_column("workload, SLOs")
    for preset in found:
        table.add_row(
            f"{preset.name}\n{preset.model}\n{preset.hardware}",
            f"{preset.description}\nSLOs: {', '.join(slos_of(preset))}",
            end_section=True,
        )
    show(table)


def print_space(settings: AskedSettings, *, as_json: bool) -> None:
    resolved = space_on_card(settings)
    if as_json:
        print(json.dumps(space_document(resolved), indent=1))
        return
    defaults = resolved.known_defaults()
    table = new_table()
    for heading in ("parameter", "values", "default", "only when"):
        table.add_column(heading, no_wrap=heading == "parameter", overflow="fold")
    for parameter in resolved.parameters:
        mark = " *" if parameter.spec.changes_answers else " +" if parameter.spec.changes_stream else ""
        default = "" if parameter.name not in defaults else str(defaults[parameter.name])
        table.add_row(f"{parameter.name}{mark}", str(parameter.domain), default, parameter.spec.when or "")
    context = resolved.context
    engine = f"{'simulated ' if context.simulated else ''}{context.engine} {context.engine_version or 'of any version'}"
    model = "" if settings.model is None else f" for {settings.model}"
    show(f"search space {resolved.name} on {context.hardware.name}{model}, {engine}", table)
    if any(parameter.spec.changes_answers for parameter in resolved.parameters):
        print("* changes the model's answers; --keep-answers leaves it out")
    if any(parameter.spec.changes_stream for parameter in resolved.parameters):
        print("+ changes how tokens arrive at a user; it is offered with an SLO on ITL or --allow-bunched-tokens")
    if resolved.dropped:
        show("", Text("not offered", style="bold"), labelled(_dropped(resolved)))
    named = {name: f"{known.note} [{known.source}]" for name, known in resolved.named.items()}
    recipes = resolved.recipes
    tried = [(name, named.pop(name)) for name, reason in recipes.items() if reason is None]
    named |= {name: f"recipe: {reason}. {named[name]}" for name, reason in recipes.items() if reason is not None}
    if tried:
        title = (
            f"recipes, which a study with the load of {settings.preset} measures first; --no-recipes leaves them out"
        )
        show("", Text(title, style="bold"), labelled(tried))
    if named:
        show("", Text("named configurations, for --enqueue", style="bold"), labelled([*named.items()]))


def install(folder: Path, tiny_model: Path | None, *, cpu: bool) -> None:
    """Install vLLM for the CPU, and print its path; all other lines go to stderr.

    Raises:
        SettingError: without `cpu`, because pip alone installs vLLM for GPUs.
    """
    if not cpu:
        rule = "only the build for CPUs is installed here"
        raise SettingError("cpu", None, rule, "add {cpu}; for a GPU, `pip install vllm` in an environment of its own")
    if tiny_model is not None:
        print(f"made a model without weights in {make_model(tiny_model)}", file=sys.stderr)
    executable = install_cpu_vllm(folder, lambda step: print(f"installing: {step}", file=sys.stderr, flush=True))
    print(executable)


def tune(study: str | None, vllm: str | None, storage: str | None) -> None:
    """Make the files of tuned settings that a study's engine missed."""
    found = read_study(storage, study)
    files, others = untuned_files(found)
    if not files:
        print(f"study {found.record.name} missed no file of tuned kernels of experts that is not made yet")
    for number, file in enumerate(files, 1):
        print(f"[{number}/{len(files)}] {file}", flush=True)
        tune_kernels(found, vllm, file)
    for file in others:
        print(f"not made: {file} (only kernels of experts in 16 bits or FP8; see docs/engines.md#tuned-kernels)")


def _dropped(resolved: ResolvedSpace) -> Rows:
    """Return what is not offered and why: parameters and values that have one reason together."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for each in resolved.dropped:
        values = reasons.setdefault(each.reason, {}).setdefault(each.parameter, [])
        values.extend([] if each.value is None else [str(each.value)])
    names = {why: [f"{n} = {', '.join(v)}" if v else n for n, v in found.items()] for why, found in reasons.items()}
    return [("\n".join(wrap(", ".join(found), _LABEL_WIDTH)), why) for why, found in names.items()]


_LABEL_WIDTH = 44
"""Columns of the names of parameters and values that a space does not offer."""

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


def print_doctor(vllm: str | None, server_command: str | None, *, as_json: bool) -> int:
    """Print what is installed and what would run, and return the exit code; see `examine`."""
    facts = examine(vllm, server_command)
    facts["would_run"] = spelled(facts["would_run"], option_of)
    if as_json:
        print(json.dumps(facts, indent=1))
    else:
        for title, rows in _sections(facts).items():
            show(Text(title, style="bold"), labelled(rows, indent=2))
    return 0 if facts["problem"] is None else EXIT_OURS


def _sections(facts: Mapping[str, Any]) -> dict[str, Rows]:
    """Return the sections: the tuner, the machine, the engines, and what would run."""
    host: Rows = [(HOST_LABELS.get(name, name), str(value)) for name, value in facts["host"].items()]
    gpus: Rows = [("GPU", gpu) for gpu in facts["gpus"]] or [("GPUs", "none")]
    left: Rows = [("left running", process) for process in facts["started_processes"]]
    command: Rows = [
        ("executable", facts.get("server_program", "")),
        ("version", facts.get("server_program_version", "")),
    ]
    problem: Rows = [] if facts["problem"] is None else [("problem", facts["problem"])]
    return {
        f"tuner {facts['tuner']}": [("packages", ", ".join(facts["packages"])), ("caches and records", facts["home"])],
        "this machine": [*host, *gpus],
        **{kind.title: _engine(kind, facts) for kind in engines_without_command()},
        **({"command": command} if "server_program" in facts else {}),
        "processes of earlier runs": left or [("left running", "none")],
        "`tuner optimize` here": [("runs", facts["would_run"]), *problem],
    }


def _engine(kind: EngineKind, facts: Mapping[str, Any]) -> Rows:
    program = facts[program_fact(kind)]
    is_python = kind.program is not None and kind.program.name.startswith("python")
    rows: Rows = [("Python" if is_python else "executable", program or "none found")]
    if program is None:
        return rows
    rows.append(("version", facts[fact_name(kind, "version")] or "unknown"))
    if (gpus := facts.get(fact_name(kind, "gpus"))) is not None:
        rows.append(("can use", ", ".join(gpus) or "the CPU"))
    return [*rows, *_unmet(facts.get(fact_name(kind, "unmet")))]


def _unmet(lines: Sequence[str] | None) -> Rows:
    """Return requirements that an engine's environment does not meet, the first ones of many."""
    if not lines:
        return []
    more = len(lines) - SHOWN_UNMET
    rows = list(lines[:SHOWN_UNMET]) + ([f"{more} more, in --json"] if more > 0 else [])
    return [("unmet requirements" if number == 0 else "", line) for number, line in enumerate(rows)]


def print_cluster(address: str, vllm: str | None, *, as_json: bool) -> int:
    """Print the nodes of a cluster, and return the exit code: 1 if one of them has a problem."""
    reports = check_cluster(address, vllm)
    if as_json:
        nodes = [{**asdict(report.facts), "problems": report.problems} for report in reports]
        for node in nodes:
            node["profile"] = None if node["profile"] is None else node["profile"]["key"]
        print(json.dumps({"nodes": nodes}, indent=1))
    else:
        _print_nodes(reports)
    return EXIT_OURS if any(report.problems for report in reports) else 0


def _print_nodes(reports: Sequence[NodeReport]) -> None:
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
