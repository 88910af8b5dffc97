"""The command line of settings."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from tuner.cli.options import option_of


def command_of(fields: Mapping[str, Any]) -> str:
    """Return the `tuner optimize` command of settings, quoted for a shell.

    Args:
        fields: values by the keywords of `tuner.optimize`, as plain JSON; see `tuner.use_cases.levers.find`.
    """
    server = fields.get("server_arguments", ())
    words = [word for name, value in fields.items() if name != "server_arguments" for word in _words(name, value)]
    return shlex.join(["tuner", "optimize", *words, *(("--", *server) if server else ())])


def _words(name: str, value: Any) -> Iterator[str]:
    """Yield an option and its value; a value that looks like a flag is joined by `=`."""
    option = option_of(name)
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, bool):
            yield option if each else option.replace("--", "--no-", 1)
            continue
        text = each if isinstance(each, str) else str(int(each)) if each == int(each) else repr(each)
        yield from (f"{option}={text}",) if text.startswith("-") else (option, text)
