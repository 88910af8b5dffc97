"""The output of `tuner simulate`."""

from __future__ import annotations

import json

from tuner.cli.output.parts.console import new_table, show
from tuner.cli.output.parts.labelled import labelled
from tuner.engines.simulator.parameters import error_bands
from tuner.results import text
from tuner.use_cases.preview.documents import simulation_document
from tuner.use_cases.simulate import Simulation

SHOWN = (
    "output_throughput",
    "request_throughput",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "p99_itl_ms",
)
COSTS = ("cost_per_million_output_tokens", "cost_per_million_total_tokens")
"""Shown where there is a price."""


def report(simulation: Simulation, *, as_json: bool) -> None:
    """Print a prediction."""
    if as_json:
        print(json.dumps(simulation_document(simulation), indent=1))
    else:
        _print(simulation)


def _print(simulation: Simulation) -> None:
    roof, machine = simulation.roofline, simulation.machine
    print(
        f"{text.BANNER}: vLLM {simulation.vllm_version} serving {simulation.model} on one {simulation.card.name}\n"
        f"{simulation.completed} of {simulation.offered} requests completed\n"
    )
    bands = error_bands()
    table = new_table()
    for heading in ("metric", "predicted", "error of nine in ten recorded runs"):
        table.add_column(heading, justify="right" if heading == "predicted" else "left", no_wrap=True)
    for name in (*SHOWN, *(COSTS if simulation.price is not None else ())):
        band = bands.get(name)
        value = text.with_unit(name, simulation.metrics.get(name))
        table.add_row(name, value, "" if band is None else f"within {band:.0%}")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in simulation.time_shares.items())
    roofline = (
        f"{roof.intensity:.0f} FLOP per byte, below"
        if roof.intensity < roof.ridge
        else f"{roof.intensity:.0f} FLOP per byte, above"
    )
    rows = [
        *([] if simulation.price is None else [("price", str(simulation.price))]),
        ("KV cache", f"{machine.budget.tokens:,} tokens"),
        ("preemptions", text.number(simulation.run.counts.preemptions)),
        ("attention backend", str(machine.config.backend)),
        ("time of a step", shares),
        ("roofline", f"{roofline} the ridge at {roof.ridge:.0f}: bound by {roof.roof}, {roof.share:.0%} of it reached"),
    ]
    show(table, "", labelled(rows))
