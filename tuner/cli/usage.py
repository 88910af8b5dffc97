"""Explain on one line why a command ended, and return its exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import typer

from records.plugins import PluginError
from search_spaces.errors import SpaceError
from storage.errors import StorageError, StorageUnavailable, WaitInterrupted, database_reason
from tuner.cli.help import FIRST_WEEK
from tuner.cli.options import option_of
from tuner.engines.simulator.flags import flag_names
from tuner.errors import EXIT_INTERRUPTED, EXIT_OURS, EXIT_USER, SettingError, TunerError
from tuner.extras import missing

_USAGE_ERROR, _CLI_ERROR = typer.BadParameter.__mro__[1:3]

_RULES = (
    (r"Input should be a valid integer.*", "not a whole number"),
    (r"Input should be a valid number.*", "not a number"),
    (r"Input should be greater than or equal to (\S+)", r"at least \1 is needed"),
    (r"Input should be less than or equal to (\S+)", r"at most \1 is possible"),
)
"""Patterns of typer's messages about values, and the rules in the words of all other messages."""

_STUDY_ARGUMENTS = {"study": "STUDY", "studies": "STUDY", "trial": "STUDY#12", "trials": "STUDY#12 STUDY#15"}
"""Names of arguments for studies and trials, and how a study is written there."""


def explain(error: Exception, words: Sequence[str], tree: Any) -> int:
    """Print one line about an error and return the exit code.

    `words` is the command line without its program, `tree` the group of all commands.
    """
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, typer.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, _CLI_ERROR):
        return _print_usage(error, words, tree)
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OURS
    if isinstance(error, TunerError):
        _say(_about_setting(error, words, tree) if isinstance(error, SettingError) else str(error))
        return error.exit_code
    if isinstance(error, SpaceError | StorageError | PluginError):
        _say(str(error))
        if isinstance(error, WaitInterrupted):
            return EXIT_INTERRUPTED
        return EXIT_OURS if isinstance(error, StorageUnavailable) else EXIT_USER
    if isinstance(error, ModuleNotFoundError) and (lacking := missing(error)) is not None:
        _say(str(lacking))
        return lacking.exit_code
    reason = database_reason(error)
    if reason is not None:
        _say(f"the database failed: {reason}; check that it runs and has space, then run the same command again")
        return EXIT_OURS
    _say(f"internal error: {type(error).__name__}: {error} (run with `tuner --debug …` for the traceback)")
    return EXIT_OURS


def _print_usage(error: Exception, words: Sequence[str], tree: Any) -> int:
    """Print a mistake in the arguments on one line, or the help if no command was given."""
    message = str(getattr(error, "format_message", lambda: str(error))())
    if message.startswith("Usage:"):
        print(message)
        return EXIT_USER
    _say(_usage(error, words, tree))
    return EXIT_USER if isinstance(error, _USAGE_ERROR) else EXIT_OURS


def _say(message: str) -> None:
    print("tuner: " + " ".join(message.split("\n")), file=sys.stderr)


def _usage(error: Exception, words: Sequence[str], tree: Any) -> str:
    command = _command(error, words, tree)
    option = str(getattr(error, "option_name", ""))
    if hasattr(error, "possibilities"):
        passes_flags = getattr(getattr(error, "ctx", None), "allow_extra_args", False)
        if passes_flags and option in flag_names():
            return f"{option} is a flag of `vllm serve`; write it after `--`: {command} … -- {option} …"
        if option == "--study" and (asks := _with_study(error)) is not None:
            return f"there is no option --study; the name is an argument: `{command} {asks}`"
        near = ", ".join(sorted(error.possibilities or ()))
        return f"there is no option {option}; " + (f"did you mean {near}?" if near else f"see `{_help(command)}`")
    message = str(getattr(error, "format_message", lambda: str(error))())
    if getattr(error, "param", None) is not None and message.startswith("Invalid value"):
        message = _about_value(error, words)
    elif option and "requires an argument" in message:
        message = f"{option} needs a value"
    elif "unexpected extra argument" in message and _with_study(error) == "STUDY#12":
        message = f"one trial is shown; with the name of its study it is `{command} STUDY#12`"
    else:
        message = f"{message[:1].lower()}{message[1:]}".rstrip(".").replace(". Did you mean", "; did you mean")
    return message if message.endswith("?") else f"{message}; see `{_help(command)}`"


def _with_study(error: Exception) -> str | None:
    """Return how the arguments of a command name a study, or trials of one; None if the command takes neither."""
    parameters = getattr(getattr(getattr(error, "ctx", None), "command", None), "params", ())
    arguments = [each.name for each in parameters if each.param_type_name == "argument"]
    return next((_STUDY_ARGUMENTS[name] for name in arguments if name in _STUDY_ARGUMENTS), None)


def _command(error: Exception, words: Sequence[str], tree: Any) -> str:
    """Return the command of a mistake; some errors, such as that about an option without a value, do not contain it."""
    context = getattr(error, "ctx", None)
    return f"tuner {_named(words, tree)[0]}".strip() if context is None else str(context.command_path)


def _named(words: Sequence[str], tree: Any) -> tuple[str, Any]:
    """Return the command that a command line names, by its words after `tuner`, and itself."""
    path: list[str] = []
    for word in words:
        inner = getattr(tree, "commands", {})
        if word in inner:
            path, tree = [*path, word], inner[word]
        elif not word.startswith("-"):
            break
    return " ".join(path), tree


def _about_setting(error: SettingError, words: Sequence[str], tree: Any) -> str:
    """Return the line about a setting, which begins with its option, or the argument that the command has for it."""
    line, option = error.message(option_of, " "), option_of(error.field)
    for each in _named(words, tree)[1].params:
        if each.name == error.field and each.param_type_name == "argument" and line.startswith(f"{option} "):
            return f"{re.sub(r'[][.]', '', each.metavar)}{line.removeprefix(option)}"
    return line


def _help(command: str) -> str:
    """Return the command that shows every option or command."""
    return f"{command} --help-all" if command.partition(" ")[2] in FIRST_WEEK else f"{command} --help"


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
