"""Find the engine that is installed today, and compare it with what a study expects.

Everything here happens before a server starts. A flag that the installed engine no longer has ends the recheck.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from records.trials import Provenance
from search_spaces import Context, HardwareProfile, SpaceError, known_hardware, load_space
from search_spaces.schema import VLLM
from tuner.engines.base import Engine, EngineInfo
from tuner.engines.command_line import check_known_flags, check_values
from tuner.engines.factory import EngineFactory
from tuner.engines.kinds import kind_of
from tuner.errors import SettingError, UserError, as_text
from tuner.processes.secrets import Secrets, referenced
from tuner.settings.study import StudySettings
from tuner.use_cases.devices import Devices
from tuner.use_cases.engines import chosen_engine
from tuner.use_cases.recheck.expected import Expected, Setup

_SHOWN_FLAGS = 6
"""The flags that a line names; the others are counted."""


@dataclass(frozen=True)
class Installation:
    """An engine, which the caller closes, with its own description and the devices that it runs on."""

    engine: Engine
    info: EngineInfo
    devices: Devices

    @property
    def device(self) -> str:
        """The name of the device of a server, as trials record it."""
        return self.devices.names[0]

    @property
    def title(self) -> str:
        """The engine and its version."""
        return f"{kind_of(self.info.name).title} {self.info.version}"


def find_installation(expected: Expected, program: str | None) -> Installation:
    """Return the engine of today; `program` is the vllm executable, None: the one that is found.

    Raises:
        UserError: if it is not installed, a secret is not set, the study simulated a card of a file, or `program` is
            given and the study did not run vLLM.
    """
    if program is not None and (expected.engine != VLLM or expected.provenance is Provenance.SIMULATED):
        title = kind_of(expected.engine).title
        ran = f"a simulated {title}" if expected.provenance is Provenance.SIMULATED else title
        raise SettingError("vllm", program, f"study {expected.study!r} ran {ran}", "leave it out")
    settings, devices = chosen_engine(_settings(expected, program))
    engine = EngineFactory(replace(settings, secrets=_secrets(expected)))(0)
    return Installation(engine, engine.info(), devices)


def _settings(expected: Expected, program: str | None) -> StudySettings:
    """Return the settings that find the engine of a study.

    Raises:
        UserError: if it simulated a card that the catalogue lacks.
    """
    gpus = expected.gpus if expected.gpus > 1 else None
    if expected.provenance is Provenance.SIMULATED:
        # the end, because a device may be `2 × NVIDIA H200`, and `NVIDIA H20` is another card
        card = next((key for key, each in known_hardware().items() if expected.device.endswith(each.name)), None)
        if card is None:
            rule = as_text(f"study {expected.study!r} simulated {expected.device}, which a file described")
            raise SettingError("gpu", None, rule, "tune again: tuner optimize {engine} simulated {gpu} FILE")
        return StudySettings(engine="simulated", gpu=card, workers=1, gpus_per_trial=gpus)
    command = shlex.join(expected.command) if expected.command else None
    return StudySettings(engine=expected.engine, vllm=program, server_command=command, workers=1, gpus_per_trial=gpus)


def _secrets(expected: Expected) -> Secrets:
    """Return the values of the variables that the servers refer to.

    Raises:
        UserError: for one that is not set.
    """
    texts = [text for each in expected.setups for text in (*each.flags, *each.environment.values())]
    values = {}
    for name in sorted(referenced((*texts, *expected.command))):
        if name not in os.environ:
            rule = f"the servers of study {expected.study!r} need the variable {name}, which is not set"
            raise UserError(f"{rule}; set it: export {name}=…")
        values[name] = os.environ[name]
    return Secrets(values)


def refuse_lost_flags(expected: Expected, setups: Sequence[Setup], info: EngineInfo) -> None:
    """Refuse an installation that lacks a flag of a server, or refuses its value.

    Raises:
        UserError: with the flag, the configuration that has it, and the next step.
    """
    if expected.provenance is Provenance.SIMULATED:
        return
    for setup in setups:
        try:
            check_known_flags(setup.flags, info)
            check_values(setup.flags, info)
        except SettingError as error:
            hint = f"; {error.remedy}" if error.remedy.startswith("did you mean") else ""
            rule = f"{error.rule}, and {setup.name} of study {expected.study!r} has it{hint}"
            remedy = f"tune again: {retune(expected, info.version)}"
            raise SettingError("server_arguments", error.value, rule, remedy) from None


def retune(expected: Expected, version: str, loads: Sequence[str] = ()) -> str:
    """Return the command that tunes again, with the study as its source study.

    `{name}` stands for an option, as in the texts of a `SettingError`.

    Args:
        expected: what the study expects.
        version: of the engine today, for the name of the new study.
        loads: paths of the traffic files; a closed loop has none.
    """
    named = [("study", f"{expected.study}-{version}"), ("learn_from", expected.study), *expected.again.settings]
    named += [("workload", each) for each in loads]
    settings = [f"{{{name}}} {as_text(shlex.quote(value))}" for name, value in named]
    flags = ["--", as_text(shlex.join(expected.again.flags))] if expected.again.flags else []
    return " ".join(["tuner optimize", *settings, *flags])


def changes(expected: Expected, today: Installation, model: str | None) -> list[str]:
    """Return a line for each difference from the study, or one line without any; `model` replaces the winner's."""
    return list(_changes(expected, today, model)) or [f"{today.title} on {today.device}, as in the study"]


def _changes(expected: Expected, today: Installation, model: str | None) -> Iterator[str]:
    info = today.info
    if info.version != expected.version:
        yield f"{kind_of(info.name).title}: {expected.version} -> {info.version}"
    if today.device != expected.device:
        yield f"device: {expected.device} -> {today.device}"
    if expected.drivers and today.devices.drivers and expected.drivers[-1] != today.devices.drivers[-1]:
        yield f"driver: {expected.drivers[-1]} -> {today.devices.drivers[-1]}"
    if model is not None:
        yield f"model: {expected.winner.model} -> {model}"
    if info.version != expected.version:
        yield from _new_defaults(expected, today)


def _new_defaults(expected: Expected, today: Installation) -> Iterator[str]:
    """Yield a line for each parameter whose default differs between the versions, as the search space declares it."""
    before, after = (
        _defaults(expected, version, today.devices.profile) for version in (expected.version, today.info.version)
    )
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            yield f"default of {name}: {before[name]} -> {after[name]}"


def _defaults(expected: Expected, version: str, hardware: HardwareProfile) -> Mapping[str, Any]:
    """Return an engine version's defaults by parameter; empty if the study's space cannot be loaded here."""
    with suppress(SpaceError, OSError, ValueError):
        if expected.space is not None:
            context = Context(hardware=hardware, engine_version=version, gpus=expected.gpus)
            return load_space(expected.space).resolve(context).known_defaults()
    return {}


def flag_changes(before: EngineInfo, after: EngineInfo) -> list[str]:
    """Return lines about the flags that are gone and those that are new; none if an engine's flags are unknown.

    Short names and `--no-…` are other names of a flag, and are left out.
    """
    if before.flags is None or after.flags is None:
        return []
    lines = []
    for what, names in (("gone", before.flags - after.flags), ("new", after.flags - before.flags)):
        long = sorted(name for name in names if name.startswith("--") and not name.startswith("--no-"))
        more = f" and {len(long) - _SHOWN_FLAGS} more" if len(long) > _SHOWN_FLAGS else ""
        if long:
            lines.append(f"flags {what}: {', '.join(long[:_SHOWN_FLAGS])}{more}")
    return lines
