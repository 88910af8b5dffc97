"""`tuner doctor`: the installed programs, the GPUs, and what `tuner optimize` would run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from tuner.cli.options import AsJson, RayAddress, ServerCommand, Vllm
from tuner.use_cases.places import home


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

    from tuner.use_cases.cluster import check_cluster

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
    from tuner.engines.vllm.installation import find_executable, version_of
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
    from tuner.engines.server.programs import interpreter_of
    from tuner.engines.server.unmet import unmet_requirements
    from tuner.engines.vllm.installation import ENTRY_POINT

    interpreter = None if executable is None else interpreter_of(executable, ENTRY_POINT)
    return None if interpreter is None else unmet_requirements(interpreter, "vllm")


def _llama_cpp() -> dict[str, Any]:
    """Return llama.cpp's server and its version; None without one, and then why."""
    from tuner.engines.llama_cpp.installation import find_server, installation
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
    from tuner.engines.sglang.installation import find_python, installation
    from tuner.errors import UserError

    try:
        found = installation(find_python())
    except UserError as error:
        return {"sglang": None, "sglang_version": None, "sglang_problem": str(error)}
    unmet = unmet_requirements(found.python, "sglang")
    return {
        "sglang": str(found.python),
        "sglang_version": found.version,
        "sglang_unmet": unmet,
        "sglang_problem": None,
    }


def _tensorrt_llm() -> dict[str, Any]:
    """Return TensorRT-LLM's program and its version; None without one, and then why."""
    from tuner.engines.tensorrt_llm.installation import find_server, installation
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
    from tuner.engines.openai.installation import find_program, version_of
    from tuner.engines.user_command import read_command

    program = find_program(read_command(text)[0])
    return {"server_program": str(program), "server_program_version": version_of(program)}


def _would_run(gpus: bool, vllm: str | None, problem: str | None) -> str:
    """Return what `tuner optimize` without options runs here."""
    from tuner.use_cases.simulated_engine import wants_simulation

    if wants_simulation("auto", vllm, None):
        measured = "" if problem is not None else "; use --engine vllm to measure with the installed vLLM"
        return f"a simulated vLLM: there is no GPU{measured}"
    if problem is not None:
        return "nothing: there is no vLLM"
    return "vLLM on every GPU" if gpus else "vLLM on the CPU (with a CPU build), one worker"
