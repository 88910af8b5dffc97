"""The engine `openai` of a study: its command, and the settings that another engine or a command cannot have."""

from __future__ import annotations

import os
from dataclasses import replace

from tuner.engines.base import EngineSettings
from tuner.engines.command_line import OPENAI
from tuner.engines.openai.command import read_command
from tuner.engines.openai.installation import find_program
from tuner.engines.openai.prompts import find_tools
from tuner.errors import SettingError
from tuner.processes.identity import own_identity
from tuner.processes.records import ProcessRecords
from tuner.study.specification.builder import StudyPlan
from tuner.study.specification.settings import EngineChoice, StudySettings
from tuner.use_cases.devices import Devices, find_devices
from tuner.use_cases.places import home


def with_command(settings: StudySettings, choice: EngineChoice) -> StudySettings:
    """Return the settings with the words of the command, which runs in the present folder.

    Raises:
        SettingError: for a text that is no command, none for the engine `openai`, and one for another engine.
    """
    text = choice.server_command
    if choice.engine != OPENAI:
        if text is not None:
            rule = "this setting is for a server's command, and this study runs another engine"
            raise SettingError("server_command", text, rule, f"add {{engine}} {OPENAI}, or leave it out")
        return settings
    if text is None:
        remedy = "give {server_command} 'PROGRAM ARGUMENTS', with {{port}} for the port"
        raise SettingError("server_command", None, "this engine starts a command, and none is given", remedy)
    return replace(settings, server=replace(settings.server, command=read_command(text), folder=os.getcwd()))


def openai_engine(choice: EngineChoice, gpus: int = 1) -> tuple[EngineSettings, Devices]:
    """Return the engine and its devices: the GPUs of this machine, else the CPU.

    Args:
        choice: the settings.
        gpus: of each trial.

    Raises:
        UserError: for a program that cannot be run, a cluster, and the settings of other engines.
    """
    if choice.vllm is not None:
        rule = "this setting is for vLLM, and this study runs a command"
        raise SettingError("vllm", choice.vllm, rule, "name the program in {server_command}, or leave it out")
    if choice.ray_address is not None:
        raise SettingError("ray_address", choice.ray_address, "a command runs on this machine only", "leave it out")
    program = find_program(read_command(choice.server_command or "")[0])
    devices = find_devices(choice.workers, gpus)
    return EngineSettings(OPENAI, os.fspath(program), home(), driver=own_identity(), gpus=devices.each), devices


def check_tokenizer(plan: StudyPlan) -> None:
    """Refuse a tokenizer that makes no prompts, before a server is started.

    Raises:
        SettingError: with the tokenizer.
    """
    if plan.engine == OPENAI:
        find_tools(plan.model.tokenizer, "", ProcessRecords(home() / "processes"), None)
