"""What `tuner simulate` does once its arguments are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from search_spaces import HardwareProfile
from tuner.cli.output import text
from tuner.engines.simulator.config.models import PACKAGES, version_tuple
from tuner.engines.simulator.config.precision import ConfigRefused
from tuner.engines.simulator.machine import Machine, SimulatedRun
from tuner.engines.simulator.memory.budget import StartFailed
from tuner.engines.simulator.parameters import error_bands, parameters_of
from tuner.engines.simulator.prediction import Site, metrics_of, send, set_up
from tuner.engines.simulator.timing.roofline import Roofline, roofline_of
from tuner.errors import UserError
from tuner.study.builder import sampling
from tuner.study.find_model import find_simulated_model
from tuner.study.resolve_workload import find_workload, too_long
from tuner.use_cases.simulated_engine import find_card, find_version
from tuner.workloads.presets import load_preset
from tuner.workloads.spec import SingleWorkload
from tuner.workloads.suite import Suite

SHOWN = ("output_throughput", "request_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms")


@dataclass(frozen=True)
class Asked:
    """What the user asked for."""

    gpu: str | None
    model: str | None
    preset: str
    workload: str | None
    rate: float | None
    load: Mapping[str, int | float]
    environment: Mapping[str, str]
    version: str | None
    words: tuple[str, ...]
    seed: int
    noise: bool


def run(asked: Asked, as_json: bool) -> int:
    """Simulate and print; return the exit code."""
    preset = load_preset(asked.preset)
    card = find_card(asked.gpu or preset.hardware)
    version = find_version(asked.version, card)
    load = find_workload(preset, [asked.workload] if asked.workload else [], asked.rate, asked.load)
    assert not isinstance(load, Suite)  # one file makes one load
    load = load.model_copy(update={"seed": asked.seed})
    reference, shape = find_simulated_model(asked.model or preset.model, None)
    words = (*sampling(load), *asked.words)
    try:
        site = Site(card, parameters_of(card.key), version_tuple(version), PACKAGES)
        machine = set_up(site, words, asked.environment, shape)
        if load.longest_request > machine.config.max_model_len:
            raise UserError(too_long(load, machine.config.max_model_len))
    except (ConfigRefused, StartFailed) as error:
        raise UserError(f"vLLM {version} would not serve that on {card.name}: {error}") from None
    found = _predict(machine, load, asked)
    if as_json:
        print(json.dumps(_document(found, machine, card, version, reference.name), indent=1))
    else:
        _print(found, machine, card, version, reference.name)
    return 0


@dataclass(frozen=True)
class Found:
    """A prediction."""

    metrics: Mapping[str, float | None]
    offered: int
    completed: int
    run: SimulatedRun
    roofline: Roofline


def _predict(machine: Machine, load: SingleWorkload, asked: Asked) -> Found:
    done = send(machine, load, asked.seed, noise=asked.noise)
    metrics = metrics_of(load, done, machine) or {}
    completed = sum(job.status == "completed" for job in done.jobs)
    return Found(metrics, len(done.jobs), completed, done, roofline_of(machine.config, done))


def _shares(done: SimulatedRun) -> dict[str, float]:
    total = sum(done.seconds.values()) or 1.0
    return {name: seconds / total for name, seconds in done.seconds.items()}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _document(found: Found, machine: Machine, card: HardwareProfile, version: str, model: str) -> dict[str, Any]:
    counts, jobs = found.run.counts, found.run.jobs
    done = [job for job in jobs if job.status == "completed"]
    return {
        "provenance": "simulated",
        "vllm": version,
        "gpu": card.name,
        "model": model,
        "num_prompts": found.offered,
        "completed": found.completed,
        "failed": found.offered - found.completed,
        "duration": max((job.end_s for job in jobs if job.end_s is not None), default=None),
        "total_input_tokens": sum(job.prompt.tokens for job in done),
        "total_output_tokens": sum(job.prompt.output for job in done),
        **found.metrics,
        "kv_cache_tokens": machine.budget.tokens,
        "preemptions": counts.preemptions,
        "prefix_cache_hit_rate": _share(counts.hit_tokens, counts.queried_tokens),
        "spec_decode_acceptance_rate": _share(counts.accepted_tokens, counts.drafted_tokens),
        "attention_backend": machine.config.backend,
        "step_shares": _shares(found.run),
        "roofline": asdict(found.roofline),
        "error_bands": error_bands(),
    }


def _print(found: Found, machine: Machine, card: HardwareProfile, version: str, model: str) -> None:
    roof = found.roofline
    print(f"SIMULATED: predicted, not measured, for vLLM {version} serving {model} on one {card.name}")
    print(f"{found.completed} of {found.offered} requests completed")
    bands = error_bands()
    for name in SHOWN:
        band = bands.get(name)
        likely = "" if band is None else f"   (nine of ten recorded runs within {band:.0%})"
        print(f"  {name:<22}{text.number(found.metrics.get(name)):>12}{likely}")
    preemptions = found.run.counts.preemptions
    print(f"  KV cache {machine.budget.tokens:,} tokens, {preemptions} preemptions, {machine.config.backend}")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in _shares(found.run).items())
    print(f"  a step's time: {shares}")
    print(
        f"  roofline: {roof.intensity:.0f} FLOP a byte, the {roof.roof} is the roof (ridge at {roof.ridge:.0f}); "
        f"{roof.share:.0%} of it reached"
    )
