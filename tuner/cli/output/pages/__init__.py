"""The pages of commands. A command imports this package, and a page is imported when the command uses it.

So no `--help` waits for the libraries of the pages.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.cli.output.pages import (
        benchmarks,
        classes,
        compare,
        files,
        mlflow,
        optimize,
        recheck,
        service,
        setup,
        show,
        size,
        studies,
        traffic,
    )

__all__ = [
    "benchmarks",
    "classes",
    "compare",
    "files",
    "mlflow",
    "optimize",
    "recheck",
    "service",
    "setup",
    "show",
    "size",
    "studies",
    "traffic",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")
