"""Build a study that is ready to run from its settings, in three steps.

`plan_study` checks the settings as far as possible without the installed engine, before anything is started.
`build_spec` resolves the search space for the engine and the hardware, before anything is written. `prepare_study`
reads the database: the settings of the study's first run and its source studies.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from search_spaces import (
    Context,
    HardwareProfile,
    ResolvedSpace,
    Space,
    SpaceError,
    load_space,
    space_names,
)
from search_spaces.render import gpus_of
from search_spaces.schema import VLLM
from storage.store import Store
from tuner.engines.base import EngineInfo
from tuner.engines.command_line import (
    check_known_flags,
    check_server_arguments,
    check_values,
    sampling_arguments,
)
from tuner.engines.kinds import kind_of
from tuner.engines.openai.engine import UNKNOWN
from tuner.engines.user_command import absolute_arguments, read_command
from tuner.errors import SettingError, UserError
from tuner.gpu import host_limits
from tuner.processes.secrets import Secrets
from tuner.settings.declared import part, seconds_of
from tuner.settings.study import ConfirmationSettings, SearchSettings, StudySettings
from tuner.specs import Limits
from tuner.study.source_studies import source_studies
from tuner.study.specification.configurations import (
    are_flags,
    check_configuration,
    check_parameters,
    check_study_name,
    default_name,
    enqueued_values,
)
from tuner.study.specification.find_model import facts_of_models, locate_others, longest_context, model_of, too_long
from tuner.study.specification.plans import PreparedStudy as PreparedStudy
from tuner.study.specification.plans import StudyPlan as StudyPlan
from tuner.study.specification.plans import (
    engine_parts,
    facts_of_engines,
    given_baseline,
    given_configurations,
    join_parts,
    without_prefix,
)
from tuner.study.specification.resolve_workload import (
    check_price,
    check_requests,
    find_goals,
    find_workload,
    goal_sources,
    has_itl_slo,
    study_price,
)
from tuner.study.specification.settings import ServerSettings, check_gpus, gpus_of_trial, needed_flags, refer_to_secrets
from tuner.study.specification.spec import StudySpec, refuse_other_price, with_stored_settings
from tuner.workloads.presets import Preset, load_preset
from tuner.workloads.spec import ClosedLoop, Workload


def plan_study(
    settings: StudySettings,
    *,
    on_cpu: bool = False,
    simulated: bool = False,
    card: str | None = None,
    engine: str = VLLM,
) -> StudyPlan:
    """Check settings as far as possible without the engine.

    Args:
        settings: settings of the study.
        on_cpu: whether the workers have no GPU; the default space is then the one for CPUs.
        simulated: whether nothing is measured; the model's shape is then enough.
        card: key of the hardware, for the study's name; None for the preset's.
        engine: that runs the study; a simulated one is vLLM.

    Raises:
        UserError: for a setting that cannot work.
    """
    preset = load_preset(settings.preset)
    space = declared_space(settings.space, preset, engine, on_cpu=on_cpu)
    name = default_name(settings, preset, card) if settings.study is None else settings.study
    check_study_name(name)
    server, secrets = _server(settings, engine)
    settings = replace(settings, server_arguments=server.arguments, env=server.environment)
    workload, gpus = find_workload(preset, settings), gpus_of_trial(settings)
    own, one_shape = not settings.files, gpus_of(server.arguments) >= gpus
    goals = find_goals(preset, workload, settings, own=own, gpus=gpus, one_shape=one_shape)
    model, shape = model_of(settings, preset.model, engine, simulated=simulated)
    check_price(settings.price)
    check_gpus(settings, None if shape is None else shape.heads)
    longest = longest_context(shape, engine, server.arguments)
    if longest is not None and workload.longest_request > longest:
        raise too_long(workload, longest)
    plan = StudyPlan(settings, preset, name, model, shape, space, workload, goals, server, secrets, engine)
    sampling_arguments(workload.temperature, engine)
    if not simulated:
        check_requests(workload, engine, server.arguments)
    _check_names(plan)
    return replace(plan, settings=locate_others(settings, space, simulated=simulated))


def _server(settings: StudySettings, engine: str) -> tuple[ServerSettings, Secrets]:
    """Return every server's flags, variables and command, with references for secrets, and the secrets.

    Raises:
        UserError: for flags that the engine or the tuner does not take, and for a secret that is given literally.
    """
    check_server_arguments(settings.server_arguments, engine)
    given = ServerSettings.of(settings)
    kind = kind_of(engine)
    if kind.program is None and settings.server_command is not None:  # it runs in the current folder
        given = replace(given, command=read_command(settings.server_command), folder=os.getcwd())
    server, secrets = refer_to_secrets(given, os.environ, move=kind.moves_secrets)
    arguments = server.arguments if kind.program is None else absolute_arguments(server.arguments)
    return replace(server, arguments=arguments), secrets


def declared_space(name: str | None, preset: Preset, engine: str, *, on_cpu: bool) -> Space:
    """Return the space: the given one, or the engine's default.

    Raises:
        UserError: if there is no such space, or it is another engine's.
    """
    kind = kind_of(engine)
    default = kind.space or ("cpu" if on_cpu else preset.space)
    if kind.program is None and name is None:
        rule = "a command has flags of its own, and no space that is shipped has them"
        raise SettingError("space", None, rule, f"give {{space}} FILE.yaml, with the line 'engine: {engine}'")
    try:
        space = load_space(name or default)
    except SpaceError as error:
        raise UserError(str(error)) from None
    if space.engine != engine:
        rule = f"this space has the flags of {space.engine}, and the study runs {engine}"
        remedy = f"choose one of {', '.join(space_names(engine))}, or add {{engine}}"
        raise SettingError("space", name, rule, f"write 'engine: {engine}' into it" if kind.program is None else remedy)
    return space


def build_spec(plan: StudyPlan, engine: EngineInfo, hardware: HardwareProfile, artifacts: Path) -> StudySpec:
    """Return the specification of a study for an engine and a device.

    Args:
        plan: the checked settings.
        engine: the installed engine.
        hardware: the device of a worker.
        artifacts: folder of all studies' artifacts.

    Raises:
        UserError: for a setting that cannot work with this engine or hardware.
    """
    settings = plan.settings
    for each in plan.every:
        check_known_flags(needed_flags(each.settings), engine.named(each.engine))
        check_values(each.settings.server_arguments, engine.named(each.engine))
    space = _resolve(plan, engine, hardware)
    price = study_price(settings.price, hardware, plan.goals, engine.provenance)
    facts = {
        "preset": plan.preset.name,
        "goals_from": goal_sources(plan.preset.name, settings, own=not settings.files),
        "hardware": hardware.name,
        "engine_defaults": space.known_defaults(),
        "default_config": space.engine_defaults(),
        **({} if (gpus := gpus_of_trial(settings)) == 1 else {"gpus": gpus, "nodes": settings.nodes_per_trial}),
        **({} if plan.server.folder is None else {"folder": plan.server.folder}),
        **facts_of_engines(plan, engine),
    }
    return StudySpec(
        name=plan.name,
        model=plan.model,
        workload=plan.workload,
        space=space,
        space_source=plan.space.to_dict(),
        goals=plan.goals,
        server=plan.server,
        artifacts=artifacts / plan.name,
        enqueue=given_configurations(plan, space),
        baseline=given_baseline(plan, space),
        engines=engine_parts(plan),
        search_prompts=_search_prompts(settings, plan.workload),
        search=part(SearchSettings, settings),
        confirmation=part(ConfirmationSettings, settings),
        limits=limits_of(settings),
        facts=facts if price is None else {**facts, "price": price.to_dict()},
        price=price,
    )


def prepare_study(spec: StudySpec, engine: EngineInfo, store: Store) -> PreparedStudy:
    """Return a study that is ready to run.

    Args:
        spec: the specification by the settings of this run.
        engine: the engine that runs it.
        store: the database of the study and of its source studies.

    Raises:
        SettingError: for a source study that does not exist or cannot be used, and for another price than before.
    """
    refuse_other_price(spec.price, store.study(spec.name))
    spec = with_stored_settings(spec, store)
    return PreparedStudy(spec, engine, tuple(source_studies(store, spec, engine)))


def with_stored_parameters(plan: StudyPlan, spec: StudySpec, engine: EngineInfo, store: Store) -> StudySpec:
    """Return the study with the parameters that it stored, also those that only an earlier run's configuration named.

    A study that is not stored, or whose parameters the space no longer has, is unchanged.
    """
    stored = store.study(spec.name)
    names = [] if stored is None else list(stored.premise.get("space", {}).get("parameters", ()))
    if not names or names == [parameter.name for parameter in spec.space.parameters]:
        return spec
    wider = _resolve(plan, engine, spec.space.context.hardware, names)
    return replace(spec, space=wider) if names == [each.name for each in wider.parameters] else spec


def limits_of(settings: StudySettings) -> Limits:
    """Return the deadlines of a trial."""
    return Limits(startup_s=seconds_of("startup_timeout", settings.startup_timeout))


def _check_names(plan: StudyPlan) -> None:
    """Refuse names of parameters and configurations that the declared space does not have."""
    for text in plan.enqueue:
        check_configuration(plan.space, "enqueue", text)
    baseline = plan.settings.baseline
    if baseline is not None and not are_flags(baseline):
        check_configuration(plan.space, "baseline", baseline)
    for name in plan.settings.only:
        check_parameters(plan.space, "only", name, (name,))


def _resolve(
    plan: StudyPlan, engine: EngineInfo, hardware: HardwareProfile, stored: Collection[str] = ()
) -> ResolvedSpace:
    """Return the space without the parts that the hardware, the engine or the settings exclude.

    Args:
        plan: the study.
        engine: that runs it.
        hardware: its device.
        stored: parameters to offer even if they make no difference: those of a stored study.

    Raises:
        UserError: if the settings name what the space does not have, or nothing is left.
    """
    if plan.others:
        parts = {
            each.engine: _resolve_one(each, engine.named(each.engine), hardware, without_prefix(each.engine, stored))
            for each in plan.every
        }
        return join_parts(parts)
    return _resolve_one(plan, engine, hardware, stored)


def _resolve_one(
    plan: StudyPlan, engine: EngineInfo, hardware: HardwareProfile, stored: Collection[str]
) -> ResolvedSpace:
    """Return the space of one engine; see `_resolve`."""
    settings = plan.settings
    context = Context(
        hardware=hardware,
        engine_version=None if engine.version == UNKNOWN else engine.version,
        flags=engine.flags,
        model=plan.shape,
        packages=engine.packages,
        concurrency=plan.workload.max_concurrency,
        input_len=plan.workload.input_len,
        output_len=plan.workload.output_len,
        priorities=plan.workload.priorities,
        base_argv=plan.server.arguments,
        engine=kind_of(plan.engine).title,
        gpus=gpus_of_trial(settings),
        nodes=settings.nodes_per_trial,
        simulated=engine.simulated,
        **facts_of_models(settings),
        **host_limits(),
    )
    named = [("enqueue", text) for text in plan.enqueue]
    if settings.baseline is not None and not are_flags(settings.baseline):
        named.append(("baseline", settings.baseline))
    wanted = {*stored, *(name for field, text in named for name in enqueued_values(plan.space, field, text))}
    try:
        space = plan.space.resolve(
            context,
            keep_answers=settings.keep_answers,
            only=settings.only or None,
            keep_stream=not (settings.bunched_tokens or has_itl_slo(plan.goals, plan.workload)),
            wanted=wanted,
        )
    except SpaceError as error:
        raise UserError(str(error)) from None
    if not space.parameters:
        reasons = "; ".join(dict.fromkeys(dropped.reason for dropped in space.dropped))
        raise SettingError("space", plan.space.name, f"no parameter is left on {hardware.name}: {reasons}")
    return space


def _search_prompts(settings: StudySettings, workload: Workload) -> int | None:
    """Return how many requests of a closed loop the search sends; None for all, as without a confirmation."""
    if not isinstance(workload, ClosedLoop) or not settings.confirm_rounds or not settings.baseline_repeats:
        return None
    prompts = workload.shortened(settings.search_load).num_prompts
    return prompts if prompts < workload.num_prompts else None
