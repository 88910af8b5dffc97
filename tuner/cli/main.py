"""The `tuner` command: its commands, and the boundary where an exception becomes one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated

import typer

from tuner import __version__
from tuner.cli.arguments import hide_secrets
from tuner.cli.commands import files, results, run, service, setup, studies, traffic
from tuner.cli.help import HelpCommand, HelpGroup, help_all, with_help_all
from tuner.errors import EXIT_INTERRUPTED
from tuner.files import be_private

app = typer.Typer(
    name="tuner",
    cls=HelpGroup,
    help="A Bayesian autotuner for LLM serving: finds vLLM's flags for a model, a card and a workload, under SLOs.",
    epilog="Start with `tuner optimize`, which simulates vLLM if there is no GPU. `tuner doctor` shows what would run.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _add(panel: str, *commands: Callable[..., None], passes_flags: bool = False) -> None:
    """Add commands, each under its function's name with `-` for `_`; the help lists them below the heading `panel`.

    Args:
        panel: heading.
        commands: functions of commands.
        passes_flags: whether flags after `--` are passed to the server.
    """
    usage = "[OPTIONS] [-- FLAGS OF vllm serve]" if passes_flags else "[OPTIONS]"
    context = {"allow_extra_args": passes_flags, "ignore_unknown_options": False}
    for command in commands:
        add = app.command(
            cls=HelpCommand,
            rich_help_panel=panel,
            options_metavar=usage,
            context_settings=context,
        )
        add(with_help_all(command))


_add("Run", run.optimize, run.simulate, run.capacity, run.size, run.quality, passes_flags=True)
_add("Run", run.load, run.verify, run.recheck, run.drift)
app.add_typer(traffic.group, rich_help_panel="Run")
_add(
    "Results",
    studies.studies,
    studies.trials,
    results.best,
    results.compare,
    studies.show,
    results.tradeoff,
    results.requests,
)
_add("Results", files.export, files.report, files.sync, files.ui)
_add("Service", service.serve)
_add("Service", service.submit, passes_flags=True)
_add("Service", service.watch, service.status, service.logs, service.mcp)
_add("Service", service.stop, service.cancel, service.resume, service.delete, service.token)
_add("Setup", setup.presets, setup.space, setup.doctor, setup.install_vllm, setup.kernels)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"tuner {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show a traceback when something goes wrong."),
    help_all: Annotated[bool, help_all("Show every command and option.")] = False,
) -> None:
    if debug:
        os.environ["TUNER_DEBUG"] = "1"


def main() -> None:
    """Run the command line; never returns."""
    hide_secrets(sys.argv[1:])
    be_private()
    try:
        code = app(prog_name="tuner", standalone_mode=False)
    except Exception as error:  # noqa: BLE001  the command's boundary
        if os.environ.get("TUNER_DEBUG"):
            traceback.print_exc()
        from tuner.cli.usage import explain  # it knows the simulator's flags and the errors of all libraries

        commands = [*(each.name for each in app.registered_commands), *(each.name for each in app.registered_groups)]
        code = explain(error, sys.argv[1:], [str(name) for name in commands])
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    sys.stdout.flush()
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
