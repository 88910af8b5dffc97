"""The pages of `tuner presets` and `tuner space`."""

from __future__ import annotations

import json

from rich.text import Text

from tuner.cli.output.parts import labelled, new_table, show
from tuner.use_cases.preview import SpaceChoice as SpaceChoice
from tuner.use_cases.preview import preset_document, slos_of, space_document, space_on_card
from tuner.workloads.presets import load_preset, preset_names


def print_presets(*, as_json: bool) -> None:
    """Print the presets."""
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


def print_space(choice: SpaceChoice, *, as_json: bool) -> None:
    """Print a search space on a card."""
    resolved, hardware, engine = space_on_card(choice)
    if as_json:
        print(json.dumps(space_document(resolved, hardware), indent=1))
        return
    defaults = resolved.known_defaults()
    table = new_table()
    for heading in ("parameter", "values", "default", "only when"):
        table.add_column(heading, no_wrap=heading == "parameter", overflow="fold")
    for parameter in resolved.parameters:
        mark = " *" if parameter.spec.changes_answers else " +" if parameter.spec.changes_stream else ""
        default = "" if parameter.name not in defaults else str(defaults[parameter.name])
        table.add_row(f"{parameter.name}{mark}", str(parameter.domain), default, parameter.spec.when or "")
    show(
        f"search space {resolved.name} on {hardware.name}, {engine} {choice.vllm_version or 'of any version'}",
        table,
        width=140,
    )
    if any(parameter.spec.changes_answers for parameter in resolved.parameters):
        print("* changes the model's answers; --keep-answers leaves it out")
    if any(parameter.spec.changes_stream for parameter in resolved.parameters):
        print("+ changes how tokens arrive at a user; it is offered with an SLO on ITL or --allow-bunched-tokens")
    if resolved.dropped:
        dropped = [(f"{d.parameter}{'' if d.value is None else f' = {d.value}'}", d.reason) for d in resolved.dropped]
        show("", Text("not offered", style="bold"), labelled(dropped), width=140)
    if resolved.named:
        named = [(name, f"{known.note} [{known.source}]") for name, known in resolved.named.items()]
        show("", Text("named configurations, for --enqueue", style="bold"), labelled(named), width=140)
