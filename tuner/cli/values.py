"""Values of options that need reading."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tuner.errors import UserError

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def seconds(option: str, text: str) -> float:
    """Read a duration such as `90`, `45s`, `30m`, `2h` or `1h30m`.

    Raises:
        UserError: for anything else, and for 0.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(min|[smhd]?)", text.strip())
    if not parts or re.sub(r"\s", "", text) != "".join(number + unit for number, unit in parts):
        raise UserError(f"{option} {text!r} is not a duration; give for example 90s, 45m or 2h")
    total = math.fsum(float(number) * _UNITS[unit] for number, unit in parts)
    if total <= 0:
        raise UserError(f"{option} {text!r} leaves no time; give for example 90s, 45m or 2h")
    return total


def pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Read `NAME=VALUE` texts.

    Raises:
        UserError: when one has another form, or a name comes twice.
    """
    result: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise UserError(f"{option} {text!r}: give NAME=VALUE")
        if name in result:
            raise UserError(f"{option} {text!r}: {name} is given twice")
        result[name] = value
    return result


def bound_load(
    users: int | None,
    prompts: int | None,
    input_len: int | None,
    output_len: int | None,
    temperature: float | None,
) -> dict[str, int | float]:
    """Return what the user said of the load under the workload's own names."""
    given: dict[str, int | float | None] = {
        "max_concurrency": users,
        "num_prompts": prompts,
        "input_len": input_len,
        "output_len": output_len,
        "temperature": temperature,
    }
    return {name: value for name, value in given.items() if value is not None}
