"""Mistakes in the arguments of a command, each explained on one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from tuner.cli.help import FIRST_WEEK

_RULES = (
    (r"Input should be a valid integer.*", "not a whole number"),
    (r"Input should be a valid number.*", "not a number"),
    (r"Input should be greater than or equal to (\S+)", r"at least \1 is needed"),
    (r"Input should be less than or equal to (\S+)", r"at most \1 is possible"),
)
"""Patterns of typer's messages about values, and the rules in the words of all other messages."""


def explain_usage(error: Exception, words: Sequence[str], commands: Sequence[str]) -> str:
    """Return what is wrong and what to do.

    Args:
        error: a usage error of typer.
        words: the command line without its program.
        commands: the names of all commands.
    """
    command = _command(error, words, commands)
    option = str(getattr(error, "option_name", ""))
    if hasattr(error, "possibilities"):
        if _passes_flags(error) and _is_server_flag(option):
            return f"{option} is a flag of `vllm serve`; write it after `--`: {command} … -- {option} …"
        near = ", ".join(sorted(error.possibilities or ()))
        return f"there is no option {option}; " + (f"did you mean {near}?" if near else f"see `{_help(command)}`")
    message = str(getattr(error, "format_message", lambda: str(error))())
    if getattr(error, "param", None) is not None and message.startswith("Invalid value"):
        message = _about_value(error, words)
    elif option and "requires an argument" in message:
        message = f"{option} needs a value"
    else:
        message = f"{message[:1].lower()}{message[1:]}".rstrip(".").replace(". Did you mean", "; did you mean")
    return message if message.endswith("?") else f"{message}; see `{_help(command)}`"


def _command(error: Exception, words: Sequence[str], commands: Sequence[str]) -> str:
    """Return the command of a mistake; some errors, such as that about an option without a value, do not contain it."""
    context = getattr(error, "ctx", None)
    if context is not None:
        return str(context.command_path)
    named = next((word for word in words if not word.startswith("-")), "")
    return f"tuner {named}" if named in commands else "tuner"


def _help(command: str) -> str:
    """Return the command that shows every option or command."""
    return f"{command} --help-all" if command.split()[-1] in FIRST_WEEK else f"{command} --help"


def _passes_flags(error: Exception) -> bool:
    """Return whether the command passes flags to servers."""
    return bool(getattr(getattr(error, "ctx", None), "allow_extra_args", False))


def _is_server_flag(option: str) -> bool:
    from tuner.engines.simulator.flags import flag_names

    return option in flag_names()


def _about_value(error: Exception, words: Sequence[str]) -> str:
    """Return the option, the value that it refuses, and the rule."""
    parameter = getattr(error, "param", None)
    rule = str(getattr(error, "message", ""))
    for pattern, known in _RULES:
        rule = re.sub(pattern, known, rule)
    for word, following in pairwise([*words, ""]):
        option, equals, inline = word.partition("=")
        if option in getattr(parameter, "opts", ()):
            return f"{option} {inline if equals else following!r}: {rule}"
    return f"{getattr(parameter, 'metavar', None) or getattr(parameter, 'name', '')}: {rule}"
