"""`tuner presets`: the workloads that ship with the tuner, each with its model, card and SLOs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tuner.cli.options import AsJson

if TYPE_CHECKING:
    from tuner.workloads.presets import Preset


def presets(as_json: AsJson = False) -> None:
    """List the presets: workload, model, card and SLOs under one name."""
    from tuner.use_cases.preview.documents import preset_document
    from tuner.workloads.presets import load_preset, preset_names

    found = [load_preset(name) for name in preset_names()]
    if as_json:
        print(json.dumps([preset_document(preset) for preset in found], indent=1))
    else:
        _print(found)


def _print(found: list[Preset]) -> None:
    from tuner.cli.output.parts.console import new_table, show
    from tuner.use_cases.preview.documents import slos_of

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
