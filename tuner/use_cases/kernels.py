"""Tune the kernels for which a study's engine had no tuned settings."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from search_spaces.catalogue.layers import Experts
from tuner.engines.simulator.precision import NotSimulated
from tuner.engines.simulator.serve_config import find_shape
from tuner.engines.vllm import toolbox
from tuner.errors import InfrastructureError, SettingError
from tuner.files import home
from tuner.use_cases.stored import StoredStudy

_FILE = re.compile(
    r"E=(?P<experts>\d+),N=(?P<size>\d+),device_name=[^,]+(?P<fp8>,dtype=fp8_w8a8)?(,block_shape=\[(?P<block>\d+,\d+)\])?\.json"
)
"""A file of experts in 16 bits or in FP8, as vLLM names it."""
_PROGRAM = Path(toolbox.__file__).parent / "resident" / "tune_experts.py"


def untuned_files(study: StoredStudy) -> tuple[list[str], list[str]]:
    """Return the files that servers of a study missed and that are not made yet: of experts, and of other kernels."""
    servers = [each.outcome.server for each in study.trials if each.outcome is not None]
    named = [name for each in servers if each is not None for name in (each.untuned_kernels or "").split("; ") if name]
    missed = [name for name in dict.fromkeys(named) if not (toolbox.kernel_folder(home()) / name).is_file()]
    return [name for name in missed if _FILE.fullmatch(name)], [name for name in missed if not _FILE.fullmatch(name)]


def tune_kernels(study: StoredStudy, vllm: str | None, file: str) -> None:
    """Make a file with vLLM's own Python on this machine's first GPU; the program prints the times it finds.

    Raises:
        SettingError: for kernels that are no experts' in 16 bits or FP8, and where model or vLLM are not found.
        InfrastructureError: if the program fails.
    """
    shape = _shape_of(file, str(study.record.premise["model"]["name"]))
    executable = toolbox.find_executable(vllm or study.record.facts.get("executable"))
    python = toolbox.installation(executable, home()).python
    if python is None:
        raise SettingError("vllm", os.fspath(executable), "its Python is not known", "name VENV/bin/vllm itself")
    words = [
        os.fspath(python),
        os.fspath(_PROGRAM),
        json.dumps({**shape, "folder": os.fspath(toolbox.kernel_folder(home()))}),
    ]
    code = subprocess.run(words, env={**os.environ, **toolbox.own_environment(home())}, check=False).returncode
    if code != 0:
        raise InfrastructureError(f"{file} was not made (exit code {code}); its output is above")


def _experts_of(model: str) -> tuple[int, Experts]:
    """Return the size of the state that a model's experts see, and the experts of a layer."""
    try:
        shape = find_shape(model)
    except NotSimulated as error:
        raise SettingError("model", model, str(error), "download the model first") from None
    for group in shape.groups:
        if isinstance(group.mlp, Experts):
            return group.mlp.latent or shape.hidden, group.mlp
    raise SettingError("model", model, "it has no experts, whose kernels are tuned here")


def _shape_of(file: str, model: str) -> dict[str, Any]:
    """Return what the program needs of a file's name and of the model.

    Raises:
        SettingError: for a file of other kernels, and for a model without experts.
    """
    found = _FILE.fullmatch(file)
    if found is None:
        rule = f"{file}: only kernels of experts in 16 bits or FP8 are tuned here"
        raise SettingError("study", None, rule, "see docs/engines.md#tuned-kernels")
    hidden, experts = _experts_of(model)
    return {
        "file": file,
        "experts": int(found["experts"]),
        "size": int(found["size"]),
        "hidden": hidden,
        "top_k": int(experts.chosen),
        "fp8": found["fp8"] is not None,
        "block": [int(each) for each in found["block"].split(",")] if found["block"] else None,
    }
