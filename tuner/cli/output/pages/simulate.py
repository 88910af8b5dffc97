"""The output of `tuner simulate`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from tuner.cli.output.parts.console import new_table, show
from tuner.cli.output.parts.labelled import labelled
from tuner.engines.simulator.parameters import error_bands
from tuner.results import text
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
        print(json.dumps(_document(simulation), indent=1))
    else:
        _print(simulation)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _document(simulation: Simulation) -> dict[str, Any]:
    counts, requests = simulation.run.counts, simulation.run.requests
    completed = [request for request in requests if request.status == "completed"]
    return {
        "provenance": "simulated",
        "vllm": simulation.vllm_version,
        "gpu": simulation.card.name,
        "model": simulation.model,
        "num_prompts": simulation.offered,
        "completed": simulation.completed,
        "failed": simulation.offered - simulation.completed,
        "duration": max((request.end_s for request in requests if request.end_s is not None), default=None),
        "total_input_tokens": sum(request.prompt.tokens for request in completed),
        "total_output_tokens": sum(request.prompt.output for request in completed),
        **simulation.metrics,
        "price": None if simulation.price is None else simulation.price.to_dict(),
        "kv_cache_tokens": simulation.machine.budget.tokens,
        "preemptions": counts.preemptions,
        "prefix_cache_hit_rate": _share(counts.hit_tokens, counts.queried_tokens),
        "spec_decode_acceptance_rate": _share(counts.accepted_tokens, counts.drafted_tokens),
        "attention_backend": simulation.machine.config.backend,
        "step_shares": simulation.time_shares,
        "roofline": asdict(simulation.roofline),
        "error_bands": error_bands(),
    }


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
