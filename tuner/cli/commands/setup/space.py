"""`tuner space`: the search space on a card."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from tuner.cli.options import AsJson, BunchedTokens, KeepAnswers, of
from tuner.settings.study import DEFAULT_PRESET

if TYPE_CHECKING:
    from search_spaces import HardwareProfile, ModelShape, ResolvedSpace, Space


def space(
    gpu: Annotated[
        str | None,
        of("gpu", value="CARD", help="Card: a name such as t4, l4, h200, or cpu.", shown="this machine's"),
    ] = None,
    name: Annotated[str | None, of("space", shown="the preset's, or cpu")] = None,
    engine: Annotated[
        str | None,
        of(
            "engine",
            help="vllm, llama.cpp, sglang, tensorrt-llm or openai.",
            shown="the engine of the space, else vllm",
        ),
    ] = None,
    model: Annotated[
        str | None,
        of("model", value="FILE", help="Model of llama.cpp, a GGUF file.", shown="unknown; for vLLM, the preset's"),
    ] = None,
    preset: Annotated[str, of("preset", help="Preset with workload and search space.")] = DEFAULT_PRESET,
    vllm_version: Annotated[str | None, of("vllm_version", help="vLLM version, such as 0.25.1.", shown="any")] = None,
    gpus_per_trial: Annotated[int, of("gpus_per_trial", help="GPUs of a trial.", shown=None, least=1)] = 1,
    keep_answers: KeepAnswers = False,
    bunched_tokens: BunchedTokens = False,
    as_json: AsJson = False,
) -> None:
    """Show the search space on a card.

    Lists parameters with their values and defaults, what is not offered and why, and the named configurations. Model
    and workload are the preset's.
    """
    from search_spaces import Context, hardware_named
    from tuner.engines.kinds import kind_of
    from tuner.gpu import host_limits
    from tuner.settings.study import GoalSettings
    from tuner.study.specification.resolve_workload import find_goals, has_itl_slo
    from tuner.use_cases.devices import find_devices
    from tuner.use_cases.preview.documents import space_document
    from tuner.workloads.presets import load_preset

    chosen = load_preset(preset)
    hardware = hardware_named(gpu) if gpu is not None else find_devices(None).profile
    declared = _declared(name, engine, "cpu" if hardware.vendor == "cpu" else chosen.space)
    context = Context(
        hardware=hardware,
        engine_version=vllm_version,
        flags=None,
        model=_shape(declared.engine, model, chosen.model),
        packages=None,
        concurrency=chosen.workload.max_concurrency,
        input_len=chosen.workload.input_len,
        output_len=chosen.workload.output_len,
        priorities=chosen.workload.priorities,
        engine=kind_of(declared.engine).title,
        gpus=gpus_per_trial,
        **(host_limits() if gpu is None else {}),
    )
    goals = find_goals(chosen, chosen.workload, GoalSettings(), own=True)
    keep_stream = not (bunched_tokens or has_itl_slo(goals, chosen.workload))
    resolved = declared.resolve(context, keep_answers=keep_answers, keep_stream=keep_stream)
    if as_json:
        print(json.dumps(space_document(resolved, hardware), indent=1))
    else:
        _print(resolved, hardware, f"{context.engine} {vllm_version or 'of any version'}")


def _declared(name: str | None, engine: str | None, default: str) -> Space:
    """Return the named space, else the engine's, else the default.

    Raises:
        SettingError: for an engine that has no space, and for the space of another one.
    """
    from search_spaces import load_space
    from search_spaces.schema import VLLM
    from tuner.engines.kinds import kind_of, kinds
    from tuner.errors import SettingError

    if engine is not None and engine not in kinds():
        rule = "this engine has no space of its own"
        with_space = ", ".join(name for name, each in kinds().items() if each.program is not None)
        raise SettingError("engine", engine, rule, f"give one of {with_space}")
    kind = kind_of(engine or VLLM)
    if kind.program is None and name is None:
        raise SettingError("space", None, "the flags of a command are in no space that is shipped", "give {space} FILE")
    space = load_space(name or kind.space or default)
    if engine not in (None, space.engine):
        rule = f"this space has the flags of {space.engine}"
        raise SettingError("space", name, rule, f"leave {{engine}} out, or give {space.engine}")
    return space


def _shape(engine: str, file: str | None, model: str) -> ModelShape | None:
    """Return the shape of a GGUF file for llama.cpp, None without one; for vLLM, that of a known model.

    That of a command's model is known if it is a folder with a config.json.

    Raises:
        SettingError: for a file that is no GGUF file, and for one with vLLM's space.
    """
    from search_spaces import known_model
    from tuner.engines.kind import ModelForm
    from tuner.engines.kinds import kind_of
    from tuner.errors import SettingError
    from tuner.study.specification.find_model import find_gguf, named_model

    form = kind_of(engine).model_form
    if form is ModelForm.ANY:
        return None if file is None else named_model(file, None)[1]
    if form is ModelForm.GGUF:
        return None if file is None else find_gguf(file, None)[1]
    if file is not None:
        rule = "this setting is for llama.cpp; the model of another engine is the preset's"
        raise SettingError("model", file, rule, "give {preset}, or {engine} llama.cpp")
    return known_model(model)


def _print(resolved: ResolvedSpace, hardware: HardwareProfile, engine: str) -> None:
    from rich.text import Text

    from tuner.cli.output.parts.console import new_table, show
    from tuner.cli.output.parts.labelled import labelled

    defaults = resolved.known_defaults()
    table = new_table()
    for heading in ("parameter", "values", "default", "only when"):
        table.add_column(heading, no_wrap=heading == "parameter", overflow="fold")
    for parameter in resolved.parameters:
        mark = " *" if parameter.changes_answers else " +" if parameter.changes_stream else ""
        default = "" if parameter.name not in defaults else str(defaults[parameter.name])
        table.add_row(f"{parameter.name}{mark}", str(parameter.domain), default, parameter.when or "")
    show(f"search space {resolved.name} on {hardware.name}, {engine}", table, width=140)
    if any(parameter.changes_answers for parameter in resolved.parameters):
        print("* changes the model's answers; --keep-answers leaves it out")
    if any(parameter.changes_stream for parameter in resolved.parameters):
        print("+ changes how tokens arrive at a user; it is offered with an SLO on ITL or --allow-bunched-tokens")
    if resolved.dropped:
        dropped = [(f"{d.parameter}{'' if d.value is None else f' = {d.value}'}", d.reason) for d in resolved.dropped]
        show("", Text("not offered", style="bold"), labelled(dropped), width=140)
    if resolved.named:
        named = [(name, f"{known.note} [{known.source}]") for name, known in resolved.named.items()]
        show("", Text("named configurations, for --enqueue", style="bold"), labelled(named), width=140)
