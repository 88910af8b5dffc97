"""Values of options that need reading."""

from __future__ import annotations

import re
from collections.abc import Sequence

import typer

from tuner.errors import SettingError, UserError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def pairs(field: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Read the `NAME=VALUE` texts of a setting.

    Raises:
        SettingError: for another form, or a name that is given twice.
    """
    result: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise SettingError(field, text, "the form is NAME=VALUE")
        if name in result:
            raise SettingError(field, text, f"{name} is given twice")
        result[name] = value
    return result


def server_arguments(context: typer.Context) -> tuple[str, ...]:
    """Return what follows `--` on the command line: flags of the server.

    Raises:
        UserError: for a word that is neither an option nor follows `--`.
    """
    if context.args and not context.args[0].startswith("-"):
        rule = f"{context.args[0]!r} is neither an option nor a server's flag"
        raise UserError(f"{rule}; options stand before `--`, flags after it")
    return tuple(context.args)
