"""`tuner presets`: the workloads that ship with the tuner, each with its model, card and SLOs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tuner.cli.options import AsJson

if TYPE_CHECKING:
    from tuner.workloads.presets import Preset


def presets(as_json: AsJson = False) -> None:
    """List the presets: workload, model, card and SLOs under one name."""
    from tuner.workloads.presets import load_preset, preset_names

    found = [load_preset(name) for name in preset_names()]
    if as_json:
        print(json.dumps([_document(preset) for preset in found], indent=1))
    else:
        _print(found)


def _slos(preset: Preset) -> list[str]:
    """Return all SLOs of a preset, those of its request classes included."""
    from tuner.study.specification.resolve_workload import find_goals
    from tuner.study.specification.settings import GoalSettings

    return [str(slo) for slo in find_goals(preset, preset.workload, GoalSettings(), own=True).slos]


def _document(preset: Preset) -> dict[str, Any]:
    return {
        "preset": preset.name,
        "description": preset.description,
        "source": preset.source,
        "model": preset.model,
        "hardware": preset.hardware,
        "space": preset.space,
        "workload": preset.workload.model_dump(mode="json"),
        "objectives": list(preset.objectives),
        "slos": _slos(preset),
    }


def _print(found: list[Preset]) -> None:
    from tuner.cli.output.parts.console import new_table, show

    table = new_table()
    table.add_column("preset, model, card", no_wrap=True)
    table.add_column("workload, SLOs")
    for preset in found:
        table.add_row(
            f"{preset.name}\n{preset.model}\n{preset.hardware}",
            f"{preset.description}\nSLOs: {', '.join(_slos(preset))}",
            end_section=True,
        )
    show(table)
