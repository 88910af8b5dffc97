"""The commands that show what a study can use on this machine: `doctor`, `presets` and `space`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.options import AsJson, BunchedTokens, KeepAnswers, RayAddress, ServerCommand, Vllm, of
from tuner.settings.study import DEFAULT_PRESET
from tuner.use_cases.places import home

if TYPE_CHECKING:
    from search_spaces import HardwareProfile, ModelShape, ResolvedSpace, Space
    from tuner.workloads.presets import Preset


def doctor(
    vllm: Vllm = None,
    server_command: ServerCommand = None,
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Show what is installed and what would run.

    Lists packages, hardware, engines, and processes of earlier runs that still run; with --ray-address, every
    node of the cluster instead. Exits with 1 if `tuner optimize` cannot run.
    """
    if ray_address is not None:
        _doctor_of_cluster(ray_address, vllm, as_json=as_json)
        return
    facts = {**_facts(vllm), **_command(server_command)}
    if as_json:
        print(json.dumps(facts, indent=1))
    else:
        from tuner.cli.output.pages.doctor import print_doctor

        print_doctor(facts)
    if facts["problem"] is not None:
        raise typer.Exit(1)


def _doctor_of_cluster(address: str, vllm: str | None, *, as_json: bool) -> None:
    """Show the nodes of a cluster; exit with 1 if one of them has a problem."""
    from dataclasses import asdict

    from tuner.use_cases.devices import check_cluster

    reports = check_cluster(address, vllm)
    if as_json:
        nodes = [{**asdict(report.facts), "problems": report.problems} for report in reports]
        for node in nodes:
            node["profile"] = None if node["profile"] is None else node["profile"]["key"]
        print(json.dumps({"nodes": nodes}, indent=1))
    else:
        from tuner.cli.output.pages.doctor import print_nodes

        print_nodes(reports)
    if any(report.problems for report in reports):
        raise typer.Exit(1)


def _facts(vllm: str | None) -> dict[str, Any]:
    import importlib.metadata

    from tuner import __version__, gpu
    from tuner.engines.vllm.toolbox import find_executable, version_of
    from tuner.errors import UserError
    from tuner.processes.records import ProcessRecords

    packages = ("optuna", "ray", "mlflow", "sqlalchemy", "pandas")
    executable = version = problem = None
    try:
        executable = find_executable(vllm)
        version = version_of(executable, home())
    except UserError as error:
        problem = str(error)
    devices = gpu.devices()
    return {
        "tuner": __version__,
        "packages": [f"{name} {importlib.metadata.version(name)}" for name in packages],
        "host": gpu.host_facts(),
        "gpus": [f"{d.name} {d.memory_total_gib:.1f} GiB, driver {d.driver}" for d in devices],
        "vllm": str(executable) if executable else None,
        "vllm_version": version,
        "vllm_unmet": _unmet_of_vllm(executable),
        **_llama_cpp(),
        **_sglang(),
        **_tensorrt_llm(),
        "home": str(home()),
        "started_processes": [f"{r.process.pid} {r.label}" for r in ProcessRecords(home() / "processes").all()],
        "would_run": _would_run(bool(devices), vllm, problem),
        "problem": problem if devices or vllm else None,
    }


def _unmet_of_vllm(executable: Path | None) -> list[str] | None:
    """Return the requirements of vLLM that its environment does not meet; None if that is not known."""
    from tuner.engines.server.program_engine import interpreter_of
    from tuner.engines.server.unmet import unmet_requirements
    from tuner.engines.vllm.toolbox import ENTRY_POINT

    interpreter = None if executable is None else interpreter_of(executable, ENTRY_POINT)
    return None if interpreter is None else unmet_requirements(interpreter, "vllm")


def _llama_cpp() -> dict[str, Any]:
    """Return llama.cpp's server and its version; None without one, and then why."""
    from tuner.engines.llama_cpp.engine import find_server, installation
    from tuner.errors import UserError

    try:
        found = installation(find_server())
    except UserError as error:
        return {"llama_server": None, "llama_cpp_version": None, "llama_cpp_problem": str(error)}
    return {
        "llama_server": str(found.executable),
        "llama_cpp_version": found.version,
        "llama_cpp_gpus": list(found.gpus),
        "llama_cpp_problem": None,
    }


def _sglang() -> dict[str, Any]:
    """Return the Python that has SGLang, and SGLang's version; None without one, and then why."""
    from tuner.engines.server.unmet import unmet_requirements
    from tuner.engines.sglang.engine import find_python, installation
    from tuner.errors import UserError

    try:
        found = installation(find_python())
    except UserError as error:
        return {"sglang": None, "sglang_version": None, "sglang_problem": str(error)}
    unmet = unmet_requirements(found.executable, "sglang")
    return {
        "sglang": str(found.executable),
        "sglang_version": found.version,
        "sglang_unmet": unmet,
        "sglang_problem": None,
    }


def _tensorrt_llm() -> dict[str, Any]:
    """Return TensorRT-LLM's program and its version; None without one, and then why."""
    from tuner.engines.tensorrt_llm.engine import find_server, installation
    from tuner.errors import UserError

    try:
        found = installation(find_server())
    except UserError as error:
        return {"trtllm_serve": None, "tensorrt_llm_version": None, "tensorrt_llm_problem": str(error)}
    return {
        "trtllm_serve": str(found.executable),
        "tensorrt_llm_version": found.version,
        "tensorrt_llm_problem": None,
    }


def _command(text: str | None) -> dict[str, Any]:
    """Return the program of a command and its version; nothing without a command.

    Raises:
        UserError: for a command that no study can start.
    """
    if text is None:
        return {}
    from tuner.engines.openai.engine import find_program, version_of
    from tuner.engines.user_command import read_command

    program = find_program(read_command(text)[0])
    return {"server_program": str(program), "server_program_version": version_of(program)}


def _would_run(gpus: bool, vllm: str | None, problem: str | None) -> str:
    """Return what `tuner optimize` without options runs here."""
    from tuner.use_cases.simulate import wants_simulation

    if wants_simulation("auto", vllm, None):
        measured = "" if problem is not None else "; use --engine vllm to measure with the installed vLLM"
        return f"a simulated vLLM: there is no GPU{measured}"
    if problem is not None:
        return "nothing: there is no vLLM"
    return "vLLM on every GPU" if gpus else "vLLM on the CPU (with a CPU build), one worker"


def presets(as_json: AsJson = False) -> None:
    """List the presets: workload, model, card and SLOs under one name."""
    from tuner.use_cases.preview import preset_document
    from tuner.workloads.presets import load_preset, preset_names

    found = [load_preset(name) for name in preset_names()]
    if as_json:
        print(json.dumps([preset_document(preset) for preset in found], indent=1))
    else:
        _print(found)


def _print(found: list[Preset]) -> None:
    from tuner.cli.output.parts import new_table, show
    from tuner.use_cases.preview import slos_of

    table = new_table()
    table.add_column("preset, model, card", no_wrap=True)
    table.add_column("workload, SLOs")
    for preset in found:
        table.add_row(
            f"{preset.name}\n{preset.model}\n{preset.hardware}",
            f"{preset.description}\nSLOs: {', '.join(slos_of(preset))}",
            end_section=True,
        )
    show(table)


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
    from tuner.use_cases.preview import space_document
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
        _space_print(resolved, hardware, f"{context.engine} {vllm_version or 'of any version'}")


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


def _space_print(resolved: ResolvedSpace, hardware: HardwareProfile, engine: str) -> None:
    from rich.text import Text

    from tuner.cli.output.parts import labelled, new_table, show

    defaults = resolved.known_defaults()
    table = new_table()
    for heading in ("parameter", "values", "default", "only when"):
        table.add_column(heading, no_wrap=heading == "parameter", overflow="fold")
    for parameter in resolved.parameters:
        mark = " *" if parameter.spec.changes_answers else " +" if parameter.spec.changes_stream else ""
        default = "" if parameter.name not in defaults else str(defaults[parameter.name])
        table.add_row(f"{parameter.name}{mark}", str(parameter.domain), default, parameter.spec.when or "")
    show(f"search space {resolved.name} on {hardware.name}, {engine}", table, width=140)
    if any(parameter.spec.changes_answers for parameter in resolved.parameters):
        print("* changes the model's answers; --keep-answers leaves it out")
    if any(parameter.spec.changes_stream for parameter in resolved.parameters):
        print("+ changes how tokens arrive at a user; it is offered with an SLO on ITL or --allow-bunched-tokens")
    if resolved.dropped:
        dropped = [(f"{d.parameter}{'' if d.value is None else f' = {d.value}'}", d.reason) for d in resolved.dropped]
        show("", Text("not offered", style="bold"), labelled(dropped), width=140)
    if resolved.named:
        named = [(name, f"{known.note} [{known.source}]") for name, known in resolved.named.items()]
        show("", Text("named configurations, for --enqueue", style="bold"), labelled(named), width=140)
