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
from tuner.cli.commands import run, server, service, setup, study, tokens, traffic
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


def _group(panel: str, name: str, help: str, to: typer.Typer = app) -> typer.Typer:
    """Add a group to another one, whose help lists it below the heading `panel`, and return it."""
    group = typer.Typer(name=name, cls=HelpGroup, help=help, no_args_is_help=True, rich_markup_mode=None)
    to.add_typer(group, rich_help_panel=panel)
    return group


def _add(panel: str, *commands: Callable[..., None], to: typer.Typer = app, passes_flags: bool = False) -> None:
    """Add commands, each under its function's name with `-` for `_`; the help lists them below the heading `panel`.

    A name that Python or a module has taken ends with `_`. With `passes_flags`, flags after `--` go to the server.
    """
    usage = "[OPTIONS] [-- FLAGS OF vllm serve]" if passes_flags else "[OPTIONS]"
    context = {"allow_extra_args": passes_flags, "ignore_unknown_options": False}
    for command in commands:
        name = command.__name__.strip("_").replace("_", "-")
        add = to.command(
            name,
            cls=HelpCommand,
            rich_help_panel=panel,
            options_metavar=usage,
            context_settings=context,
        )
        add(with_help_all(command, name if to is app else f"{to.info.name} {name}"))


_add("Run", run.optimize, run.simulate, run.capacity, run.size, run.quality, passes_flags=True)
_traffic = _group("Run", "traffic", "Read recorded traffic, and cut it to a short benchmark.")
_add("Commands", traffic.import_, traffic.cut, to=_traffic)

_add("Results", run.recheck)
_study = _group("Results", "study", "Read, compare and export studies.")
_add("Results", study.list_, study.show, study.trials, study.trial, study.compare, to=_study)
_add("Results", study.tradeoff, study.requests, to=_study)
_add("Files and pages", study.export, study.report, study.ui, study.sync, to=_study)
_add("Before a study", setup.presets, setup.space, setup.kernels, to=_study)
_server = _group("Results", "server", "Measure and watch servers that run already.")
_add("Commands", server.load, server.verify, server.compare, server.drift, to=_server)

_add("Service", service.serve, service.mcp)
_service = _group("Service", "service", "Use a service that `tuner serve` runs.")
_add("Studies", service.submit, to=_service, passes_flags=True)
_add("Studies", service.list_, service.status, service.watch, service.logs, to=_service)
_add("Studies", service.stop, service.cancel, service.resume, service.delete, to=_service)
_add("Service", service.drift, to=_service)
_token = _group("Service", "token", "Tokens of a service.", to=_service)
_add("Commands", tokens.add, tokens.list_, tokens.revoke, to=_token)

_add("Setup", setup.doctor, setup.install_vllm)


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
    tree = typer.main.get_command(app)
    try:
        code = tree(prog_name="tuner", standalone_mode=False)
    except Exception as error:  # noqa: BLE001  the command's boundary
        if os.environ.get("TUNER_DEBUG"):
            traceback.print_exc()
        from tuner.cli.usage import explain  # it knows the simulator's flags and the errors of all libraries

        code = explain(error, sys.argv[1:], tree)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    sys.stdout.flush()
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
