"""The pages of commands. A command imports this package, and a page is imported when the command uses it.

So no `--help` waits for the libraries of the pages.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.cli.output.pages import benchmarks as benchmarks
    from tuner.cli.output.pages import classes as classes
    from tuner.cli.output.pages import compare as compare
    from tuner.cli.output.pages import files as files
    from tuner.cli.output.pages import mlflow as mlflow
    from tuner.cli.output.pages import optimize as optimize
    from tuner.cli.output.pages import recheck as recheck
    from tuner.cli.output.pages import service as service
    from tuner.cli.output.pages import setup as setup
    from tuner.cli.output.pages import show as show
    from tuner.cli.output.pages import size as size
    from tuner.cli.output.pages import studies as studies
    from tuner.cli.output.pages import traffic as traffic
else:

    def __getattr__(name: str) -> object:
        if find_spec(f"{__name__}.{name}") is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")
