"""The name of a study that is given none: from its preset, model, card and workload."""

from __future__ import annotations

import re
from pathlib import Path

from tuner.errors import SettingError
from tuner.settings.study import DEFAULT_PRESET, AskedSettings, WorkloadSettings
from tuner.workloads.presets import Preset

_STUDY_NAME = re.compile(r"[^\W_][\w .+=@-]*")
_SHORT = {"max_concurrency": "users", "num_prompts": "prompts", "input_len": "in", "output_len": "out"}


def check_study_name(name: str) -> None:
    """Refuse a name that is no folder's name.

    Raises:
        SettingError: with the rule.
    """
    if not _STUDY_NAME.fullmatch(name):
        rule = "a name starts with a letter or digit and has no slash"
        raise SettingError("study", name, rule, "choose another")


def default_name(settings: AskedSettings, preset: Preset, card: str | None) -> str:
    """Return the preset's name, followed by what the settings change, such as `llama-3.1-8b-h100-users32`.

    Args:
        settings: settings of the study.
        preset: the study's preset.
        card: key of the hardware; None for the preset's.
    """
    model, changed_card = settings.model, card if card not in (None, preset.hardware) else None
    parts = [preset.name]
    if model is not None or (changed_card is not None and preset.name == DEFAULT_PRESET):
        parts = [*([preset.name] if preset.name != DEFAULT_PRESET else []), Path(model or preset.model).name.lower()]
    parts += [] if changed_card is None else [changed_card]
    parts += _workload_parts(settings)
    return "-".join(filter(None, (re.sub(r"[^\w.+]+", "-", part).strip("-._+") for part in parts))) or preset.name


def _workload_parts(workload: WorkloadSettings) -> list[str]:
    parts = [Path(file).stem for file in workload.files]
    parts += [] if workload.rate is None else [f"rate{workload.rate:g}"]
    return parts + [f"{_SHORT.get(name, name)}{value:g}" for name, value in workload.replacements.items()]
