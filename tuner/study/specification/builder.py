"""Build the specification of a study from its plan, once the engine and the hardware are known.

Nothing is written. Several engines of one study have one joined space, in which each has its own parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from search_spaces import ENGINE, Context, HardwareProfile, JoinedSpace, ParameterValue, ResolvedSpace, SpaceError, join
from search_spaces.catalogue.describe import described
from storage.store import Store
from tuner.engines.base import EngineInfo
from tuner.engines.command_line import check_known_flags, check_values
from tuner.engines.kinds import kind_of
from tuner.engines.openai.engine import UNKNOWN
from tuner.errors import SettingError, UserError
from tuner.gpu import host_limits
from tuner.settings.declared import part
from tuner.settings.study import ConfirmationSettings, SearchSettings
from tuner.study.specification.configurations import (
    BASELINE_LABEL,
    are_flags,
    configuration_of,
    read_baseline,
    read_enqueued,
)
from tuner.study.specification.find_model import facts_of_models
from tuner.study.specification.plan import StudyPlan, gpus_of_trial
from tuner.study.specification.resolve_workload import facts_of_load, goal_sources, has_itl_slo, study_price
from tuner.study.specification.spec import EnginePart, Enqueued, StudySpec
from tuner.workloads.spec import ClosedLoop


def build_spec(plan: StudyPlan, engine: EngineInfo, hardware: HardwareProfile, artifacts: Path) -> StudySpec:
    """Return the specification of a study for an engine and a device; `artifacts` is the folder of all studies'.

    Raises:
        UserError: for a setting that cannot work with this engine or hardware.
    """
    settings = plan.settings
    for each in plan.every:
        given = each.settings.server_arguments
        needed = (*given, *(() if each.settings.nodes_per_trial == 1 else ("--nnodes",)))
        check_known_flags(needed, engine.named(each.engine))
        check_values(given, engine.named(each.engine))
    space = _resolve(plan, engine, hardware)
    price = study_price(settings.price, hardware, plan.goals, engine.provenance)
    several = bool(plan.others)
    parts = {each.engine: EnginePart(each.model, each.server) for each in plan.every}
    return StudySpec(
        name=plan.name,
        model=plan.model,
        workload=plan.workload,
        space=space,
        goals=plan.goals,
        server=plan.server,
        artifacts=artifacts / plan.name,
        enqueue=_enqueued(plan, space),
        recipes=_recipes(plan, space),
        baseline=_baseline(plan, space),
        engines=parts if several else {},
        search_prompts=_search_prompts(plan),
        search=part(SearchSettings, settings),
        confirmation=part(ConfirmationSettings, settings),
        limits=plan.limits,
        facts=_facts(plan, engine, hardware, space) | ({} if price is None else {"price": price.to_dict()}),
        price=price,
    )


def _facts(plan: StudyPlan, engine: EngineInfo, hardware: HardwareProfile, space: ResolvedSpace) -> dict[str, Any]:
    """Return what is stored with a study beside its premise; of several engines, program and format of the weights."""
    settings = plan.settings
    facts: dict[str, Any] = {
        "preset": plan.preset.name,
        "goals_from": goal_sources(plan.preset.name, settings, own=not settings.files),
        "hardware": hardware.name,
        "engine_defaults": space.known_defaults(),
        "default_config": space.engine_defaults(),
        "choices": space.choices(),
    }
    if (gpus := gpus_of_trial(settings)) > 1:
        facts |= {"gpus": gpus, "nodes": settings.nodes_per_trial}
    if plan.shape is not None:
        facts["model_layers"] = described(plan.shape)
    if plan.server.folder is not None:
        facts["folder"] = plan.server.folder
    if plan.others:
        facts["engines"] = {
            each.engine: {
                "executable": engine.named(each.engine).executable,
                "weights": None if each.shape is None else each.shape.quantization or each.shape.dtype,
            }
            for each in plan.every
        }
    return facts


def with_stored_parameters(plan: StudyPlan, spec: StudySpec, engine: EngineInfo, store: Store) -> StudySpec:
    """Return the study with the parameters and choices that it began with, also those that only an earlier run named.

    A study that is not stored, or whose parameters the space no longer has, is unchanged.

    Raises:
        UserError: for a choice that became impossible since, and for a configuration with one that came later.
    """
    stored = store.study(spec.name)
    if stored is None:
        return spec
    choices = stored.facts.get("choices", {})
    begun = {name: choices.get(name, ()) for name in stored.premise["space"]["parameters"]}
    if begun.keys() == {each.name for each in spec.space.parameters} and choices == spec.space.choices():
        return spec
    space = _resolve(plan, engine, spec.space.context.hardware, begun)
    if begun.keys() != {each.name for each in space.parameters}:
        return spec
    enqueued, recipes, baseline = _enqueued(plan, space), _recipes(plan, space), _baseline(plan, space)
    return replace(spec, space=space, enqueue=enqueued, recipes=recipes, baseline=baseline)


_Choices = Mapping[str, Collection[ParameterValue]]


def _resolve(
    plan: StudyPlan, engine: EngineInfo, hardware: HardwareProfile, begun: _Choices = MappingProxyType({})
) -> ResolvedSpace:
    """Return the space without the parts that the hardware, the engine or the settings exclude.

    Parameters of a stored study are offered even if they make no difference, with the choices in `begun`.
    """
    if not plan.others:
        return _resolve_one(plan, engine, hardware, begun)
    parts = {}
    for each in plan.every:
        prefix = f"{each.engine}."
        own = {name.removeprefix(prefix): values for name, values in begun.items() if name.startswith(prefix)}
        parts[each.engine] = _resolve_one(each, engine.named(each.engine), hardware, own)
    return join(parts)


def _resolve_one(plan: StudyPlan, engine: EngineInfo, hardware: HardwareProfile, begun: _Choices) -> ResolvedSpace:
    """Return the space of one engine; see `_resolve`."""
    settings = plan.settings
    context = Context(
        hardware=hardware,
        engine_version=None if engine.version == UNKNOWN else engine.version,
        flags=engine.flags,
        model=plan.shape,
        packages=engine.packages,
        base_argv=plan.server.arguments,
        engine=kind_of(plan.engine).title,
        gpus=gpus_of_trial(settings),
        nodes=settings.nodes_per_trial,
        simulated=engine.simulated,
        **facts_of_load(plan.workload, plan.goals),
        **facts_of_models(settings),
        **({} if engine.simulated else host_limits()),  # a simulated card is in another machine
    )
    named = [("enqueue", text) for text in plan.enqueue]
    if settings.baseline is not None and not are_flags(settings.baseline):
        named.append(("baseline", settings.baseline))
    wanted: dict[str, list[ParameterValue]] = {}
    for name, value in (item for field, text in named for item in configuration_of(plan.space, field, text).items()):
        wanted.setdefault(name, []).append(value)
    try:
        space = plan.space.resolve(
            context,
            keep_answers=settings.keep_answers,
            only=settings.only or None,
            keep_stream=not (settings.bunched_tokens or has_itl_slo(plan.goals, plan.workload)),
            wanted=wanted,
            begun=begun,
        )
    except SpaceError as error:
        raise UserError(str(error)) from None
    if not space.parameters:
        reasons = "; ".join(dict.fromkeys(dropped.reason for dropped in space.dropped))
        raise SettingError("space", plan.space.name, f"no parameter is left on {hardware.name}: {reasons}")
    return space


def _enqueued(plan: StudyPlan, space: ResolvedSpace) -> tuple[Enqueued, ...]:
    """Return what is measured before the search: the defaults of other engines, and the named configurations."""
    if not isinstance(space, JoinedSpace):
        return tuple(read_enqueued(space, "enqueue", text) for text in plan.enqueue)
    found = [Enqueued(f"{each.engine} defaults", {ENGINE: each.engine}) for each in plan.others]
    for each in plan.every:
        for text in each.enqueue:
            own = read_enqueued(space.parts[each.engine], "enqueue", text)
            label = own.label if each is plan else f"{each.engine}={own.label}"
            found.append(Enqueued(label, space.lift(each.engine, own.config)))
    return tuple(found)


def _recipes(plan: StudyPlan, space: ResolvedSpace) -> tuple[Enqueued, ...]:
    """Return the recipes of the search space that apply, in its order."""
    if not plan.settings.recipes:
        return ()
    applicable = [name for name, reason in space.recipes.items() if reason is None]
    return tuple(Enqueued(name, space.complete(space.named[name].config)) for name in applicable)


def _baseline(plan: StudyPlan, space: ResolvedSpace) -> Enqueued | None:
    """Return what the user runs today; None if it is not given."""
    for each in plan.every:
        text = each.settings.baseline
        if text is not None and isinstance(space, JoinedSpace):
            own = read_baseline(space.parts[each.engine], text)
            return Enqueued(BASELINE_LABEL, space.lift(each.engine, own.config))
        if text is not None:
            return read_baseline(space, text)
    return None


def _search_prompts(plan: StudyPlan) -> int | None:
    """Return how many requests of a closed loop the search sends; None for all, as without a confirmation."""
    settings, workload = plan.settings, plan.workload
    if not isinstance(workload, ClosedLoop) or not settings.confirm_rounds or not settings.baseline_repeats:
        return None
    prompts = workload.shortened(settings.search_load).num_prompts
    return prompts if prompts < workload.num_prompts else None
