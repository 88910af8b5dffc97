"""Previews, before anything runs: presets, the search space on a card, and the predicted defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from records.trials import Provenance
from search_spaces import (
    Context,
    HardwareProfile,
    ModelShape,
    ResolvedSpace,
    Space,
    SpaceError,
    hardware_named,
    load_space,
)
from search_spaces.catalogue.describe import described
from search_spaces.schema import VLLM
from tuner import gpu
from tuner.engines.base import EngineInfo
from tuner.engines.kind import ModelForm
from tuner.engines.kinds import SIMULATED, kind_of, kinds
from tuner.engines.simulator.engine import SimulatedEngine
from tuner.engines.simulator.flags import SIMULATED_PACKAGES, default_version
from tuner.errors import SettingError, UserError
from tuner.settings.study import AUTO, AskedSettings, GoalSettings, StudySettings
from tuner.study.specification.builder import build_spec
from tuner.study.specification.find_model import find_gguf, find_place_and_shape, named_model
from tuner.study.specification.plan import StudyPlan, plan_study
from tuner.study.specification.resolve_workload import facts_of_load, find_goals, has_itl_slo
from tuner.use_cases.devices import find_devices
from tuner.use_cases.engines import simulated_engine
from tuner.use_cases.simulate import Simulation, simulate
from tuner.workloads.presets import Preset, load_preset


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


def space_document(resolved: ResolvedSpace) -> dict[str, Any]:
    """Return a space on a card: its parameters, what is not offered and why, the named configurations, and the recipes.

    A recipe has the reason why a study does not measure it first; null: it does.
    """
    return {
        "hardware": resolved.context.hardware.name,
        "parameters": [
            {
                **{"name": p.name, "kind": p.kind, "domain": p.domain, "when": p.spec.when},
                **{"changes_answers": p.spec.changes_answers, "changes_stream": p.spec.changes_stream},
            }
            for p in resolved.parameters
        ],
        "dropped": [{"parameter": d.parameter, "value": d.value, "reason": d.reason} for d in resolved.dropped],
        "named": {name: {"config": dict(c.config), "source": c.source} for name, c in resolved.named.items()},
        "recipes": dict(resolved.recipes),
    }


def space_on_card(settings: AskedSettings) -> ResolvedSpace:
    """Return a search space for a card and a model: without a card this machine's, without an engine the space's.

    Raises:
        UserError: for a setting that cannot work.
    """
    chosen, engine = load_preset(settings.preset), None if settings.engine == AUTO else settings.engine
    simulated: dict[str, Any] = {}
    if engine == SIMULATED:
        simulated = _simulated(settings.gpu, settings.vllm_version, settings.preset)[1].facts()
    hardware = simulated.pop("hardware", None) or _card(settings.gpu)
    declared = _declared(settings.space, engine, "cpu" if hardware.vendor == "cpu" else chosen.space)
    goals = find_goals(chosen, chosen.workload, GoalSettings(), own=True)
    context = Context(
        hardware=hardware,
        model=_shape(declared.engine, settings.model, chosen.model),
        **facts_of_load(chosen.workload, goals),
        engine=kind_of(declared.engine).title,
        gpus=settings.gpus_per_trial or 1,
        **({"engine_version": settings.vllm_version} | simulated),
        **(gpu.host_limits() if settings.gpu is None else {}),
    )
    keep_stream = not (settings.bunched_tokens or has_itl_slo(goals, chosen.workload))
    return declared.resolve(context, keep_answers=settings.keep_answers, keep_stream=keep_stream)


def _card(name: str | None) -> HardwareProfile:
    return find_devices(None).profile if name is None else hardware_named(name)


def _simulated(gpu: str | None, version: str | None, preset: str) -> tuple[HardwareProfile, SimulatedEngine]:
    """Return a card, without one the preset's, and the simulated engine on it."""
    found, _ = simulated_engine(gpu, version, preset, None)
    assert found.card is not None
    assert found.version is not None
    return found.card, SimulatedEngine(found.card, found.version)


def _declared(name: str | None, engine: str | None, default: str) -> Space:
    """Return the named space, else the engine's, else the default."""
    if engine is not None and engine not in (SIMULATED, *kinds()):
        rule = "this engine has no space of its own"
        with_space = ", ".join([*(name for name, each in kinds().items() if each.program is not None), SIMULATED])
        raise SettingError("engine", engine, rule, f"give one of {with_space}")
    kind = kind_of(engine or VLLM)
    if kind.program is None and name is None:
        raise SettingError("space", None, "the flags of a command are in no space that is shipped", "give {space} FILE")
    space = load_space(name or kind.space or default)
    if engine is not None and kind.name != space.engine:
        rule = f"this space has the flags of {space.engine}"
        raise SettingError("space", name, rule, f"leave {{engine}} out, or give {space.engine}")
    return space


def _shape(engine: str, model: str | None, default: str) -> ModelShape | None:
    """Return the shape of a model; None without one for llama.cpp and for a command, and else that of `default`.

    That of a command's model is known if it is a folder with a config.json.
    """
    form = kind_of(engine).model_form
    if form is ModelForm.CHECKPOINT:
        try:
            return find_place_and_shape(model or default)[1]
        except SpaceError as error:
            raise SettingError("model", model or default, str(error)) from None
    if model is None:
        return None
    return named_model(model, None)[1] if form is ModelForm.ANY else find_gguf(model, None)[1]


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
        "model_layers": described(simulation.machine.config.model),
        "instances": simulation.machine.instances,
        "output_throughput_per_gpu": simulation.output_throughput_per_gpu,
        "memory_per_gpu": _memory(simulation),
        "kv_cache_tokens": simulation.machine.budget.tokens,
        "preemptions": counts.preemptions,
        "prefix_cache_hit_rate": counts.prefix_hit_rate,
        "spec_decode_acceptance_rate": _share(counts.accepted_tokens, counts.drafted_tokens),
        "attention_backend": simulation.machine.config.backend,
        "step_shares": simulation.run.time_shares,
        "roofline": asdict(simulation.roofline),
        "error_bands": dict(simulation.error_bands.errors),
        "no_error_band": simulation.error_bands.reason,
        "learned": None if simulation.learned is None else simulation.learned.to_dict(),
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


_NO_CPU = "the simulator does not predict CPUs"


@dataclass(frozen=True)
class StudyPreview:
    """A study before it runs, on a card and for a version of vLLM; `refusal` says why `defaults` are not predicted."""

    plan: StudyPlan
    card: HardwareProfile
    version: str
    space: ResolvedSpace
    simulated: bool
    defaults: Simulation | None
    refusal: str | None = None


def preview(settings: StudySettings, kind: str | None) -> StudyPreview:
    """Return what a study on devices of a kind, None for a simulated one, would search, and its predicted defaults.

    A study that measures is shown for the vLLM that the simulator has for its card: the installed one may differ, and
    then also what it offers.

    Raises:
        UserError: for a setting that cannot work.
    """
    card, engine = _engine(settings, kind)
    plan = _plan(settings, card, kind)
    spec = build_spec(plan, engine, card, Path())
    found, refusal = _defaults(settings, plan, card, engine.version)
    return StudyPreview(plan, card, engine.version, spec.space, kind is None, found, refusal)


def _engine(settings: StudySettings, kind: str | None) -> tuple[HardwareProfile, EngineInfo]:
    """Return the card and the engine as far as it is known without its installation."""
    if kind is None:
        card, simulated = _simulated(settings.gpu, settings.vllm_version, settings.preset)
        return card, simulated.info()
    try:
        card = hardware_named(kind)
    except SpaceError as error:
        raise SettingError("kind", kind, f"no preview: {error}") from None
    version = default_version(card)
    return card, EngineInfo("vllm", version, None, None, Provenance.MEASURED, SIMULATED_PACKAGES)


def _plan(settings: StudySettings, card: HardwareProfile, kind: str | None) -> StudyPlan:
    """Return the plan; the model of a study that measures may be unknown to the simulator."""
    on_cpu = card.vendor == "cpu"
    try:
        return plan_study(settings, on_cpu=on_cpu, simulated=True, card=card.key)
    except SettingError as error:
        if kind is None or error.field != "model":
            raise
    return plan_study(settings, on_cpu=on_cpu, card=card.key)


def _defaults(
    settings: StudySettings, plan: StudyPlan, card: HardwareProfile, version: str
) -> tuple[Simulation | None, str | None]:
    """Return the prediction of the engine without flags, or why there is none."""
    if card.vendor == "cpu":
        return None, _NO_CPU
    seed = getattr(plan.workload, "seed", 0)
    asked = replace(settings, gpu=card.key, vllm_version=version, seed=seed, gpus_per_trial=None)
    try:
        return simulate(asked), None
    except UserError as error:
        return None, str(error)


def preview_document(found: StudyPreview) -> dict[str, Any]:
    """Return a preview as JSON; `defaults` are predicted, and null with a `refusal` where they cannot be."""
    plan, metrics = found.plan, found.defaults.metrics if found.defaults is not None else None
    objectives = [each.metric for each in plan.goals.objectives]
    slos = [
        {
            "slo": str(slo),
            "value": None if metrics is None else metrics.get(slo.metric),
            "met": None if metrics is None or metrics.get(slo.metric) is None else slo.met(metrics[slo.metric]),
        }
        for slo in plan.goals.slos
    ]
    return {
        "model": plan.model.name,
        "card": found.card.name,
        "vllm": found.version,
        "would_be": "simulated" if found.simulated else "measured",
        "objectives": objectives,
        "slos": slos,
        "workload": plan.workload.model_dump(mode="json"),
        "space": {"name": found.space.name, **space_document(found.space)},
        "known_defaults": found.space.known_defaults(),
        "defaults": None if found.defaults is None else simulation_document(found.defaults),
        "shown": shown_metrics(objectives),
        "refusal": found.refusal,
    }
