"""Presets: a model, its load, its SLOs and its space under one name, as YAML beside this file."""

from __future__ import annotations

import difflib
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tuner.errors import UserError
from tuner.workloads.files import read_model
from tuner.workloads.spec import Workload
from tuner.workloads.traffic import with_absolute_files

PRESETS_FOLDER = Path(__file__).with_name("presets")


class Preset(BaseModel):
    """One preset; `objectives` and `slos` are texts as on the command line, `enqueue` names of known configurations."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    description: str
    source: str
    model: str
    hardware: str
    space: str = "vllm"
    workload: Workload
    objectives: tuple[str, ...]
    slos: tuple[str, ...]
    enqueue: tuple[str, ...] = ()


def preset_names() -> list[str]:
    """Return the names of the presets that ship with the package."""
    return sorted(path.stem for path in PRESETS_FOLDER.glob("*.yaml"))


def load_preset(name: str) -> Preset:
    """Return the preset called `name`, or the one in the YAML file of that path.

    Raises:
        UserError: when there is none, or the file is not one (with file and line).
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else PRESETS_FOLDER / f"{name}.yaml"
    if not path.is_file() or (path.parent == PRESETS_FOLDER and name not in preset_names()):
        near = difflib.get_close_matches(name, preset_names(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"presets: {', '.join(preset_names())}"
        raise UserError(f"--preset {name!r}: there is none of that name; {hint}")
    return read_model(
        path, Preset, "preset", lambda data: {"name": path.stem, **with_absolute_files(data, path.parent)}
    )
