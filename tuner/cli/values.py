"""Values of options that need reading."""

from __future__ import annotations

import re
from collections.abc import Sequence

import typer

from tuner.engines.kind import Feature
from tuner.engines.kinds import with_feature
from tuner.errors import SettingError, UserError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def divided(texts: Sequence[str] | None, engines: Sequence[str] | None) -> tuple[str | None, tuple[str, ...]]:
    """Return the first of the texts of an option, None if it is not given, and the texts after it.

    With fewer than two engines an option counts once, and the last text wins.
    """
    counted = tuple(texts or ()) if len(engines or ()) > 1 else tuple(texts or ())[-1:]
    return (counted[0] if counted else None), counted[1:]


def pairs(field: str, texts: Sequence[str] | None, form: str = "NAME=VALUE") -> dict[str, str]:
    """Read the `NAME=VALUE` texts of a setting, whose form messages name as `form`.

    Raises:
        SettingError: for another form, or a name that is given twice.
    """
    result: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise SettingError(field, text, f"the form is {form}")
        if name in result:
            raise SettingError(field, text, f"{name} is given twice")
        result[name] = value
    return result


def server_arguments(context: typer.Context) -> tuple[str, ...]:
    """Return the server's flags: the words after `--`. In a study of several engines, `ENGINE=` may be the first.

    Raises:
        UserError: for a word before `--` that is no option.
    """
    engine = context.args[0].partition("=")[0] if context.args and "=" in context.args[0] else None
    if context.args and not context.args[0].startswith("-") and engine not in with_feature(Feature.BESIDE_OTHERS):
        rule = f"{context.args[0]!r} is not an option of `{context.command_path}`"
        raise UserError(f"{rule}; flags of `vllm serve` follow `--`, such as `-- --max-num-seqs 64`")
    return tuple(context.args)
