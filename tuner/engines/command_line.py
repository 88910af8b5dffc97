"""Check the command line of a server: flags that the tuner sets, flags that a user may not set, and unknown ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from records.trials import Provenance
from search_spaces import ENGINE
from search_spaces.argv import completed, long_name, one_spelling
from search_spaces.render import without_instances
from search_spaces.schema import VLLM
from tuner.engines.base import EngineInfo
from tuner.engines.kind import Program
from tuner.engines.kinds import kind_of
from tuner.errors import SettingError

_SHORT = re.compile(r"-[A-Za-z]")


def engine_of(premise: Mapping[str, Any]) -> str:
    """Return the name of a stored study's engine."""
    return str(premise.get("engine", {}).get("name", VLLM))


def premise_of_trial(premise: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored study's premise as that of a study of one trial's engine alone.

    The name in requests is that of the default engine's model.

    Args:
        premise: of the study.
        config: of the trial.
    """
    parts = premise.get("engines")
    if not parts:
        return premise
    engine = str(config.get(ENGINE) or engine_of(premise))
    part = parts[engine]
    model = {**premise["model"], "tokenizer": part["model"]["tokenizer"]}
    server = {**premise["server"], "arguments": part["arguments"]}
    return {**premise, "engine": {"name": engine, "version": part["version"]}, "model": model, "server": server}


def program_of(engine: str, command: Sequence[str] = (), argv: Sequence[str] = ()) -> Program:
    """Return the program of an engine by its name in a study.

    Args:
        engine: the name; that of a simulated engine is vLLM's.
        command: the user's command, for the engine `openai`.
        argv: command of a trial's server, which a launcher of the tuner may have started; empty: the engine's own.
    """
    if command:
        name = Path(command[0]).name
        return Program(engine, name, name, (), "SERVER_PROGRAM", "TUNER_API_KEY", None, "", tuple(command))
    kind = kind_of(engine)
    program = kind.program
    assert program is not None, "a study of a user's command records it"
    return kind.variant(argv) or program


def command_of(premise: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the user's command of a stored study; empty for an engine that has its own."""
    return tuple(premise.get("server", {}).get("command", ()))


def check_server_arguments(arguments: Sequence[str], engine: str) -> None:
    """Refuse arguments that no server can get, as far as that is known without the installed engine.

    Raises:
        SettingError: for text before the first flag, a flag that the tuner sets, and an option that no file can hold.
    """
    if arguments and not arguments[0].startswith("-"):
        raise SettingError("server_arguments", arguments[0], "the first argument of a server is a flag")
    kind = kind_of(engine)
    reserved = {long_name(flag): remedy for flag, remedy in kind.reserved.items()}
    for argument in arguments:
        flag = argument.split("=")[0]
        name = long_name(flag)
        if name in reserved:
            raise SettingError("server_arguments", flag, "the tuner sets this flag", reserved[name])
        if name in kind.refused:
            raise SettingError("server_arguments", flag, *kind.refused[name])
    kind.check_arguments(arguments)


def check_known_flags(arguments: Sequence[str], engine: EngineInfo) -> None:
    """Refuse a server's flag that the installed engine lacks; if its flags are unknown, the first trial fails on it.

    Raises:
        SettingError: with the flag.
    """
    if engine.flags is None:
        return
    has_short = any(not name.startswith("--") for name in engine.flags)
    for before, argument in pairwise(("", *arguments)):
        name = argument.split("=")[0]
        is_flag = name.startswith("--") or (has_short and _SHORT.match(name) is not None)
        if not is_flag or before.endswith("+") or _is_known(name, engine.flags):  # `+` adds values such as -rms_norm
            continue
        long, known = long_name(name), sorted(engine.flags)
        near = completed(long, known) or next(iter(difflib.get_close_matches(long, known, n=1)), None)
        simulated = engine.provenance is Provenance.SIMULATED
        rule = "this flag is not simulated" if simulated else f"{engine.name} {engine.version} has no such flag"
        if near is not None:
            hint = f"did you mean {near}?"
        else:
            hint = "measure it with {engine} vllm" if simulated else f"see {kind_of(engine.name).help}"
        raise SettingError("server_arguments", name, rule, hint)


def check_values(arguments: Sequence[str], engine: EngineInfo) -> None:
    """Refuse arguments that the engine's own parser would refuse in every trial, as far as it is known.

    Raises:
        SettingError: with the flag and the rule.
    """
    refused = None if engine.parser is None else engine.parser.problem(without_instances(arguments))
    if refused is not None:
        raise SettingError("server_arguments", None, refused, "correct it after `--`")


def _is_known(name: str, flags: Collection[str]) -> bool:
    """Return whether an engine has a flag, by one of its names, or its keys if the name has dots."""
    flag = name.split(".")[0]
    dashed = "--" + flag.removeprefix("--").replace("_", "-")
    level = one_spelling([name])[0]  # -O3 is vLLM's --optimization-level
    return flag in flags or (flag.startswith("--") and dashed in flags) or level.split(".")[0] in flags


def sampling_arguments(temperature: float | None, engine: str) -> tuple[str, ...]:
    """Return the server's arguments that set the sampling temperature; none for the server's default.

    Raises:
        SettingError: for a user's command, whose flag is not known, and for an engine that has none.
    """
    if temperature is None:
        return ()
    kind = kind_of(engine)
    if kind.sampling is None:
        raise SettingError("temperature", temperature, *kind.no_sampling)
    return kind.sampling(temperature)
