"""The extra that brings a module, and the line that says how to install a missing one.

The extras are those of `pyproject.toml`, which an installation has in its metadata.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec

from tuner.errors import UserError

DISTRIBUTION = "llm-serving-tuner"

_REQUIREMENT = re.compile(r"([\w.-]+)[^;]*;.*\bextra == ['\"]([\w-]+)['\"].*")


def extra_of(module: str) -> str | None:
    """Return the extra that brings a module, named as its package; None if none does."""
    try:
        texts = requires(DISTRIBUTION) or ()
    except PackageNotFoundError:  # a folder on the path, not an installation
        return None
    found = [match for text in texts if (match := _REQUIREMENT.fullmatch(text))]
    return next((match[2] for match in found if match[1].lower().replace("-", "_") == module.partition(".")[0]), None)


def missing(error: ModuleNotFoundError) -> UserError | None:
    """Return the user's error for a module that an extra brings; None for any other module."""
    extra = extra_of(error.name or "")
    return None if extra is None else UserError(f"the package `{error.name}` is not installed; {remedy(extra)}")


def remedy(extra: str) -> str:
    """Return how to install an extra."""
    return f"`pip install '{DISTRIBUTION}[{extra}]'`, in a checkout `uv sync --inexact --extra {extra}`"


def need(module: str) -> None:
    """Check that a module of an extra is installed.

    Raises:
        UserError: if it is not.
    """
    if find_spec(module) is None:
        raise missing(ModuleNotFoundError(module, name=module)) or UserError(f"there is no module {module}")
