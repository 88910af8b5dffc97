"""The output of `tuner simulate`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from tuner.cli.output import text
from tuner.engines.simulator.parameters import error_bands
from tuner.use_cases.simulate import Simulation

SHOWN = ("output_throughput", "request_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms")


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
        f"SIMULATED: predicted, not measured, for vLLM {simulation.vllm_version} serving {simulation.model} "
        f"on one {simulation.card.name}"
    )
    print(f"{simulation.completed} of {simulation.offered} requests completed")
    bands = error_bands()
    for name in SHOWN:
        band = bands.get(name)
        likely = "" if band is None else f"   (nine of ten recorded runs within {band:.0%})"
        print(f"  {name:<22}{text.number(simulation.metrics.get(name)):>12}{likely}")
    preemptions = simulation.run.counts.preemptions
    print(f"  KV cache {machine.budget.tokens:,} tokens, {preemptions} preemptions, {machine.config.backend}")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in simulation.time_shares.items())
    print(f"  a step's time: {shares}")
    print(
        f"  roofline: {roof.intensity:.0f} FLOP a byte, the {roof.roof} is the roof (ridge at {roof.ridge:.0f}); "
        f"{roof.share:.0%} of it reached"
    )
