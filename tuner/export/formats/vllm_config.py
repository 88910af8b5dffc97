"""`vllm-config`: the file of `vllm serve --config`, and the variables in a second file.

vLLM turns each entry into words (`FlexibleArgumentParser.load_config_file`): `flag: true` into `--flag`, a list into
its items, any other value into its text. It drops `flag: false` without a `--no-flag`, and writes null as `None`;
neither is used here: a switch is always the name of the flag that the study gave, with `true`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from search_spaces.argv import VLLM_NAMES, long_name
from tuner.export.deployment import Deployment
from tuner.export.formats.command import shell_quoted
from tuner.export.formats.document import File, heading, installed_notes, refused, yaml_documents
from tuner.export.quoting import VARIABLE_NAME
from tuner.export.words import Argument
from tuner.processes.secrets import referenced

FORMAT = "vllm-config"
_LEVEL = re.compile(r"-O(\d)")
Value = bool | int | str | list[str]


def render(deployment: Deployment, stem: str) -> tuple[File, ...]:
    """Return the configuration and, if there are variables, `STEM.env`, which a shell reads.

    Raises:
        SettingError: for several instances, words before the first flag, an unknown short flag, or a variable that no
            shell can set.
    """
    if deployment.instances > 1:
        raise refused(
            FORMAT, f"it has the flags of one server, and this trial has {deployment.instances} behind a router"
        )
    arguments = [with_long_name(each, FORMAT) for each in deployment.arguments]
    secret = [each for each in arguments if referenced(each.values) & deployment.references]
    entries = {**_model(deployment), **config_entries(each for each in arguments if each not in secret)}
    files = _environment(deployment, stem)
    flags = [shell_quoted(word, deployment.references) for each in secret for word in (each.flag, *each.values)]
    start = " ".join(["vllm serve --config", shlex.quote(f"{stem}.yaml"), *flags])
    if files:
        start = f"set -a; . {shlex.quote(f'./{stem}.env')}; set +a; {start}"
    title = "Configuration of the vLLM server of a tuner study; flags on the command line override it."
    text = yaml_documents(
        heading(deployment, title, [f"start it in bash: {start}", *installed_notes(deployment)]), entries
    )
    return (File(text), *files)


def _model(deployment: Deployment) -> dict[str, Value]:
    named = {} if deployment.served_name == deployment.model else {"served-model-name": deployment.served_name}
    return {"model": deployment.model, **named}


def with_long_name(argument: Argument, name: str) -> Argument:
    """Return an argument under its flag's long name, `-O3` and `-cc.mode=3` included.

    Raises:
        SettingError: for words before the first flag, or an unknown short flag, which the format `name` cannot hold.
    """
    level = _LEVEL.fullmatch(argument.flag)
    if level:
        return Argument(VLLM_NAMES["-O"], (level[1], *argument.values))
    flag = long_name(argument.flag)
    if not flag.startswith("--"):
        shown = argument.flag or " ".join(argument.values)
        raise refused(name, f"it needs long flags, and {shown!r} is none")
    return Argument(flag, argument.values)


def config_entries(arguments: Iterable[Argument]) -> dict[str, Value]:
    """Return the entries of the configuration, in order.

    Two kinds of arguments have no entry of their own: a value that starts with `-`, which vLLM would read as a flag,
    and all but the last of a repeated flag. Their entry is `flag=value: true`, which vLLM turns into `--flag=value`.
    """
    found = list(arguments)
    last = {each.flag: position for position, each in enumerate(found)}
    entries: dict[str, Value] = {}
    for position, each in enumerate(found):
        name = each.flag.removeprefix("--")
        if len(each.values) == 1 and (each.values[0].startswith("-") or last[each.flag] != position):
            entries[f"{name}={each.values[0]}"] = True
        elif last[each.flag] == position:
            entries[name] = _value(each.values)
    return entries


def _value(values: tuple[str, ...]) -> Value:
    if len(values) > 1:
        return list(values)
    if not values:
        return True
    # a number whose text is the same again
    return int(values[0]) if re.fullmatch(r"0|[1-9][0-9]{0,17}", values[0]) else values[0]


def _environment(deployment: Deployment, stem: str) -> tuple[File, ...]:
    if not deployment.variables:
        return ()
    for name in deployment.variables:
        if not VARIABLE_NAME.fullmatch(name):
            raise refused(FORMAT, f"no shell can set the variable {name!r}")
    title = f"Variables of the server of {stem}.yaml; read them with `set -a; . ./{stem}.env; set +a`."
    lines = [f"{name}={shell_quoted(value, deployment.references)}" for name, value in deployment.variables.items()]
    return (File(heading(deployment, title) + "\n".join([*lines, ""]), suffix=".env"),)
