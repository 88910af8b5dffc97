"""The engine `openai` of a study: its command, and the settings that another engine or a command cannot have."""

from __future__ import annotations

from tuner.engines.openai.kind import OPENAI
from tuner.engines.openai.prompts import find_tools
from tuner.engines.user_command import read_command
from tuner.errors import SettingError
from tuner.processes.records import ProcessRecords
from tuner.settings.study import StudySettings
from tuner.study.specification.builder import StudyPlan
from tuner.use_cases.engines.named import refuse_other_programs
from tuner.use_cases.places import home


def check_command(choice: StudySettings) -> None:
    """Refuse an engine without its command, and a command without its engine.

    Raises:
        SettingError: for a text that is no command, none for the engine `openai`, and one for another engine.
    """
    text = choice.server_command
    refuse_other_programs(choice)
    if choice.engine != OPENAI.name:
        return
    if text is None:
        remedy = "give {server_command} 'PROGRAM ARGUMENTS', with {{port}} for the port"
        raise SettingError("server_command", None, "this engine starts a command, and none is given", remedy)
    else:
        read_command(text)


def check_tokenizer(plan: StudyPlan) -> None:
    """Refuse a tokenizer that makes no prompts, before a server is started.

    Raises:
        SettingError: with the tokenizer.
    """
    if plan.engine == OPENAI.name:
        find_tools(plan.model.tokenizer, "", ProcessRecords(home() / "processes"), None)
