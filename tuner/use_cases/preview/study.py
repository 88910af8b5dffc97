"""What a study would search, and what its defaults are predicted to give, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from search_spaces import HardwareProfile, ResolvedSpace, SpaceError, hardware_named
from storage.records import Provenance
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.config.vllm_release import SIMULATED_PACKAGES, default_version
from tuner.engines.simulator.engine import SimulatedEngine
from tuner.errors import SettingError, UserError
from tuner.settings.study import StudySettings
from tuner.study.specification.builder import StudyPlan, build_spec, plan_study
from tuner.use_cases.preview.documents import shown_metrics, simulation_document, space_document
from tuner.use_cases.simulate import Simulation, simulate
from tuner.use_cases.simulated_engine import simulated_engine

NO_CPU = "the simulator does not predict CPUs"


@dataclass(frozen=True)
class StudyPreview:
    """A study before it runs.

    Attributes:
        plan: its checked settings.
        card: the device that it would run on.
        version: of vLLM, that the space is resolved for.
        space: what it would search.
        simulated: whether it would be simulated.
        defaults: the prediction of the engine without flags; None if there is none.
        refusal: why there is no prediction; None if there is one.
    """

    plan: StudyPlan
    card: HardwareProfile
    version: str
    space: ResolvedSpace
    simulated: bool
    defaults: Simulation | None
    refusal: str | None = None


def preview(settings: StudySettings, kind: str | None) -> StudyPreview:
    """Return what a study would search, and its predicted defaults.

    A study that measures is shown for the vLLM that the simulator has for its card: the installed one may differ, and
    then also what it offers.

    Args:
        settings: of the study, with paths of files.
        kind: key of the devices, such as `h200` or `cpu`; None: the study is simulated.

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
        chosen, _ = simulated_engine(settings.gpu, settings.vllm_version, settings.preset, None)
        assert chosen.card is not None
        assert chosen.version is not None
        return chosen.card, SimulatedEngine(chosen.card, chosen.version, SIMULATED_PACKAGES).info()
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
        return None, NO_CPU
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
        "space": {"name": found.space.name, **space_document(found.space, found.card)},
        "known_defaults": found.space.known_defaults(),
        "defaults": None if found.defaults is None else simulation_document(found.defaults),
        "shown": shown_metrics(objectives),
        "refusal": found.refusal,
    }
