"""From what the user asked for to a `StudySpec`: every mistake is found here, before anything is started or written."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from search_spaces import Context, HardwareProfile, ModelShape, ResolvedSpace, Space, SpaceError, load_space
from tuner.engines.base import EngineInfo
from tuner.errors import UserError
from tuner.scoring.judge import Judge
from tuner.specs import Limits, ModelRef
from tuner.study.find_model import find_model, find_simulated_model
from tuner.study.resolve_workload import find_judge, find_workload, too_long
from tuner.study.spec import AUTO, SAMPLERS, Enqueued, StudySpec
from tuner.workloads.presets import Preset, load_preset
from tuner.workloads.spec import ClosedLoop, Workload


@dataclass(frozen=True)
class Request:
    """What the user asked for; None where nothing was said and the preset decides."""

    preset: str = "qwen2.5-0.5b-t4"
    study: str | None = None
    model: str | None = None
    tokenizer: str | None = None
    space: str | None = None
    only: tuple[str, ...] = ()
    keep_answers: bool = False
    objectives: tuple[str, ...] = ()
    slos: tuple[str, ...] = ()
    enqueue: tuple[str, ...] = ()
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    draft_model: str | None = None
    workloads: tuple[str, ...] = ()
    rate: float | None = None
    load: Mapping[str, int | float] = field(default_factory=dict)
    server_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    repeats: int = 1
    baseline_repeats: int = 3
    finalists: int = 3
    confirm_rounds: int = 3
    search_load: float = 1.0
    seed: int = 0
    sampler: str = AUTO
    learn_from: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Draft:
    """A request that was checked as far as it can be without knowing the installed engine and the hardware."""

    request: Request
    preset: Preset
    name: str
    model: ModelRef
    shape: ModelShape | None
    space: Space
    workload: Workload
    judge: Judge


RESERVED = ("--host", "--port", "--served-model-name", "--model", "--uds")
"""Server arguments that are the tuner's to set."""
_STUDY_NAME = re.compile(r"[^\W_][\w .+=@-]*")


def draft(request: Request, on_cpu: bool, simulated: bool = False) -> Draft:
    """Check a request.

    Args:
        request: what the user asked for.
        on_cpu: whether the workers have no GPU; then the default space is the one for CPUs.
        simulated: whether nothing is measured; then a model need only be known by its shape.

    Raises:
        UserError: one line with the rule, the value and the next step.
    """
    preset = load_preset(request.preset)
    try:
        space = load_space(request.space or ("cpu" if on_cpu else preset.space))
    except SpaceError as error:
        raise UserError(str(error)) from None
    name = preset.name if request.study is None else request.study
    if not _STUDY_NAME.fullmatch(name):
        raise UserError(f"--study {name!r}: a name starts with a letter or digit and holds no slash; choose another")
    if request.sampler not in SAMPLERS:
        raise UserError(f"--sampler {request.sampler!r}: there is none of that name; samplers: {', '.join(SAMPLERS)}")
    _check_server_arguments(request.server_arguments)
    workload = find_workload(preset, request.workloads, request.rate, request.load)
    judge = find_judge(preset, workload, request.objectives, request.slos, own=not request.workloads)
    find = find_simulated_model if simulated else find_model
    model, shape = find(preset.model if request.model is None else request.model, request.tokenizer)
    longest = shape.max_position_embeddings if shape is not None else None
    if longest is not None and workload.longest_request > longest:
        raise UserError(too_long(workload, longest))
    return Draft(request, preset, name, model, shape, space, workload, judge)


def _check_server_arguments(arguments: Sequence[str]) -> None:
    """Refuse what cannot stand after `--`, as far as that is known without the installed vLLM."""
    if arguments and not arguments[0].startswith("-"):
        raise UserError(
            f"{arguments[0]!r} is neither an option nor a server's flag; options stand before `--`, flags after it"
        )
    for argument in arguments:
        if argument.split("=")[0] in RESERVED:
            raise UserError(f"{argument.split('=')[0]} is set by the tuner; leave it out of the server's arguments")


def _check_known_flags(arguments: Sequence[str], engine: EngineInfo) -> None:
    """Refuse a server's flag that the installed parser does not know; without its flags the first trial tells."""
    if engine.flags is None:
        return
    for argument in arguments:
        if not argument.startswith("--"):
            continue
        name = argument.split("=")[0]
        flag = "--" + name.removeprefix("--").split(".")[0].replace("_", "-")
        if flag not in engine.flags:
            near = difflib.get_close_matches(flag, sorted(engine.flags), n=1)
            hint = f"did you mean {near[0]}?" if near else "see `vllm serve --help=all`"
            raise UserError(f"{name} is not a flag of the installed {engine.name} {engine.version}; {hint}")


def context_of(plan: Draft, engine: EngineInfo | None, hardware: HardwareProfile) -> Context:
    """Return what the space's rules are told."""
    return Context(
        hardware=hardware,
        engine_version=engine.version if engine else None,
        flags=engine.flags if engine else None,
        model=plan.shape,
        packages=engine.packages if engine else None,
        concurrency=plan.workload.max_concurrency,
        input_len=plan.workload.input_len,
        output_len=plan.workload.output_len,
        draft_model=plan.request.draft_model,
        checkpoints=plan.request.checkpoints,
        base_argv=(*sampling(plan.workload), *plan.request.server_arguments),
    )


def finish(plan: Draft, engine: EngineInfo, hardware: HardwareProfile, artifacts: Path) -> StudySpec:
    """Return the study, its space resolved for what is installed.

    Raises:
        UserError: when a name is not in the space, nothing is left to tune, or vLLM lacks a flag of the server.
    """
    request = plan.request
    _check_known_flags(request.server_arguments, engine)
    space, enqueue = resolve(plan, engine, hardware)
    return StudySpec(
        name=plan.name,
        model=plan.model,
        workload=plan.workload,
        space=space,
        space_source=plan.space.to_dict(),
        judge=plan.judge,
        base_argv=(*sampling(plan.workload), *request.server_arguments),
        base_environment=dict(request.environment),
        artifacts=artifacts / plan.name,
        enqueue=enqueue,
        repeats=request.repeats,
        baseline_repeats=request.baseline_repeats,
        finalists=request.finalists,
        confirm_rounds=request.confirm_rounds,
        search_prompts=_search_prompts(request, plan.workload),
        seed=request.seed,
        sampler=request.sampler,
        learn_from=request.learn_from,
        limits=request.limits,
        facts={"preset": plan.preset.name, "hardware": hardware.name, "engine_defaults": space.known_defaults()},
    )


def _search_prompts(request: Request, load: Workload) -> int | None:
    """Return what the search sends of a closed loop; all where no rounds of the finalists and the defaults decide."""
    if not isinstance(load, ClosedLoop) or not request.confirm_rounds or not request.baseline_repeats:
        return None
    prompts = load.shortened(request.search_load).num_prompts
    return prompts if prompts < load.num_prompts else None


def resolve(
    plan: Draft, engine: EngineInfo | None, hardware: HardwareProfile
) -> tuple[ResolvedSpace, tuple[Enqueued, ...]]:
    """Return the space for this hardware and engine, and what is enqueued; None: without knowing the engine yet.

    Raises:
        UserError: when a name is not in the space, or nothing is left to tune.
    """
    request = plan.request
    try:
        space = plan.space.resolve(
            context_of(plan, engine, hardware), keep_answers=request.keep_answers, only=request.only or None
        )
        enqueue = tuple(_enqueued(space, name) for name in (*plan.preset.enqueue, *request.enqueue))
    except SpaceError as error:
        raise UserError(str(error)) from None
    if not space.parameters:
        reasons = "; ".join(dict.fromkeys(dropped.reason for dropped in space.dropped))
        raise UserError(f"--space {plan.space.name!r} has no parameter left on {hardware.name}: {reasons}")
    return space, enqueue


def sampling(workload: Workload) -> tuple[str, ...]:
    """Return the server's arguments that fix how it samples."""
    if workload.temperature is None:
        return ()
    return ("--override-generation-config", json.dumps({"temperature": workload.temperature}))


def _enqueued(space: ResolvedSpace, name: str) -> Enqueued:
    """Return a named configuration of the space, or one written as JSON, `{"max_num_seqs": 64}`."""
    if name.lstrip().startswith("{"):
        try:
            return Enqueued(name, space.complete(json.loads(name)))
        except ValueError as error:
            raise UserError(f"--enqueue {name!r}: {error}") from None
    if name not in space.named:
        known = ", ".join(space.named) or "none for this space and hardware"
        raise UserError(f"--enqueue {name!r}: no configuration is called so; known: {known}")
    return Enqueued(name, space.complete(space.named[name].config))
