"""Presets: a model, its workload, objectives, SLOs and search space under one name, as YAML files beside this one."""

from __future__ import annotations

import difflib
from pathlib import Path

from tuner.errors import SettingError
from tuner.workloads.reading import Strict, read_model
from tuner.workloads.spec import Workload
from tuner.workloads.traffic import absolute_from, with_files

_PRESETS_FOLDER = Path(__file__).with_name("presets")


class Preset(Strict):
    """One preset; objectives and SLOs are texts as on the command line.

    `hardware` is the card that a simulation uses by default, and `enqueue` names configurations that are tried first.
    """

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
    return sorted(path.stem for path in _PRESETS_FOLDER.glob("*.yaml"))


def load_preset(name: str) -> Preset:
    """Return the preset with that name, or the one in the YAML file at that path.

    Raises:
        UserError: if there is none, or (with file and line) the file is not a preset.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else _PRESETS_FOLDER / f"{name}.yaml"
    if not path.is_file() or (path.parent == _PRESETS_FOLDER and name not in preset_names()):
        near = difflib.get_close_matches(name, preset_names(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"presets: {', '.join(preset_names())}"
        raise SettingError("preset", name, "no preset has this name", hint)
    return read_model(
        path, Preset, "preset", lambda data: {"name": path.stem, **with_files(data, absolute_from(path.parent))}
    )
