"""Presets, search spaces and predictions as JSON, for commands and the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from search_spaces import HardwareProfile, ResolvedSpace
from tuner.settings.study import GoalSettings
from tuner.study.specification.resolve_workload import find_goals
from tuner.use_cases.simulate import Simulation
from tuner.workloads.presets import Preset


def slos_of(preset: Preset) -> list[str]:
    """Return all SLOs of a preset, those of its request classes included."""
    return [str(slo) for slo in find_goals(preset, preset.workload, GoalSettings(), own=True).slos]


def preset_document(preset: Preset) -> dict[str, Any]:
    """Return a preset with its workload and SLOs."""
    return {
        "preset": preset.name,
        "description": preset.description,
        "source": preset.source,
        "model": preset.model,
        "hardware": preset.hardware,
        "space": preset.space,
        "workload": preset.workload.model_dump(mode="json"),
        "objectives": list(preset.objectives),
        "slos": slos_of(preset),
    }


def space_document(resolved: ResolvedSpace, hardware: HardwareProfile) -> dict[str, Any]:
    """Return a space on a card: its parameters, what is not offered and why, and the named configurations."""
    return {
        "hardware": hardware.name,
        "parameters": [
            {
                **{"name": p.name, "kind": p.kind, "domain": p.domain, "when": p.when},
                **{"changes_answers": p.changes_answers, "changes_stream": p.changes_stream},
            }
            for p in resolved.parameters
        ],
        "dropped": [{"parameter": d.parameter, "value": d.value, "reason": d.reason} for d in resolved.dropped],
        "named": {name: {"config": dict(c.config), "source": c.source} for name, c in resolved.named.items()},
    }


def simulation_document(simulation: Simulation) -> dict[str, Any]:
    """Return a prediction: its metrics, the state of the server, its roofline, and the error bands."""
    counts, requests = simulation.run.counts, simulation.run.requests
    completed = [request for request in requests if request.status == "completed"]
    ends = [request.end_s for request in requests if request.end_s is not None]
    return {
        "provenance": "simulated",
        "vllm": simulation.vllm_version,
        "gpu": simulation.card.name,
        "model": simulation.model,
        "num_prompts": simulation.offered,
        "completed": simulation.completed,
        "failed": simulation.offered - simulation.completed,
        "duration": max(ends, default=None),
        "total_input_tokens": sum(request.prompt.tokens for request in completed),
        "total_output_tokens": sum(request.prompt.output for request in completed),
        **simulation.metrics,
        "price": None if simulation.price is None else simulation.price.to_dict(),
        "gpus": simulation.machine.gpus,
        "instances": simulation.machine.instances,
        "output_throughput_per_gpu": simulation.output_throughput_per_gpu,
        "memory_per_gpu": _memory(simulation),
        "kv_cache_tokens": simulation.machine.budget.tokens,
        "preemptions": counts.preemptions,
        "prefix_cache_hit_rate": _share(counts.hit_tokens, counts.queried_tokens),
        "spec_decode_acceptance_rate": _share(counts.accepted_tokens, counts.drafted_tokens),
        "attention_backend": simulation.machine.config.backend,
        "step_shares": simulation.time_shares,
        "roofline": asdict(simulation.roofline),
        "error_bands": dict(simulation.machine.error_bands.errors),
        "no_error_band": simulation.machine.error_bands.reason,
    }


def _memory(simulation: Simulation) -> dict[str, float | None]:
    """Return what one server has on the most loaded GPU, in GiB."""
    budget = simulation.machine.budget
    return {
        "card_gib": simulation.card.memory_gib,
        "weights_gib": budget.weights_gib,
        "kv_cache_gib": budget.kv_gib,
        "activations_gib": budget.activations_gib,
        "graphs_gib": budget.graphs_gib,
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def shown_metrics(objectives: Sequence[str] = ()) -> list[str]:
    """Return the metrics of a prediction that people look at first; `objectives` come first."""
    common = ("output_throughput", "request_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms")
    return list(dict.fromkeys([*objectives, *common, "p99_itl_ms"]))
