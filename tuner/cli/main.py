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
from tuner.cli.commands import files, results, run, setup, studies
from tuner.cli.commands.service import logs, serve, status, submit, token, verbs, watch
from tuner.cli.help import HelpCommand, HelpGroup, help_all, with_help_all
from tuner.cli.options import option_of
from tuner.cli.usage import explain_usage
from tuner.errors import EXIT_INTERRUPTED, EXIT_OURS, EXIT_USER, SettingError, TunerError
from tuner.files import be_private

_USAGE_ERROR, _CLI_ERROR = typer.BadParameter.__mro__[1:3]

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
    """Add commands, each under the name of its function; the help lists them below the heading `panel`.

    Args:
        panel: heading.
        commands: functions of commands.
        passes_flags: whether flags after `--` are passed to the server.
    """
    usage = "[OPTIONS] [-- FLAGS OF vllm serve]" if passes_flags else "[OPTIONS]"
    context = {"allow_extra_args": passes_flags, "ignore_unknown_options": False}
    for command in commands:
        add = app.command(
            command.__name__, cls=HelpCommand, rich_help_panel=panel, options_metavar=usage, context_settings=context
        )
        add(with_help_all(command))


_add("Run", run.optimize, run.simulate, run.capacity, run.quality, passes_flags=True)
_add("Run", run.load, run.verify)
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
_add("Service", serve.serve)
_add("Service", submit.submit, passes_flags=True)
_add("Service", watch.watch, status.status, logs.logs)
_add("Service", verbs.stop, verbs.cancel, verbs.resume, verbs.delete, token.token)
_add("Setup", setup.presets, setup.space, setup.doctor)


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
        code = _explain(error)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    sys.stdout.flush()
    sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Exception) -> int:
    """Print one line about an error and return the exit code."""
    from records.plugins import PluginError
    from search_spaces.errors import SpaceError
    from storage.errors import StorageError, StorageUnavailable, WaitInterrupted, database_reason

    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, typer.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, _CLI_ERROR):
        return _explain_usage(error)
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OURS
    if isinstance(error, TunerError):
        _say(error.message(option_of, " ") if isinstance(error, SettingError) else str(error))
        return error.exit_code
    if isinstance(error, SpaceError | StorageError | PluginError):
        _say(str(error))
        if isinstance(error, WaitInterrupted):
            return EXIT_INTERRUPTED
        return EXIT_OURS if isinstance(error, StorageUnavailable) else EXIT_USER
    reason = database_reason(error)
    if reason is not None:
        _say(f"the database failed: {reason}; check that it runs and has space, then run the same command again")
        return EXIT_OURS
    _say(f"internal error: {type(error).__name__}: {error} (run with `tuner --debug …` for the traceback)")
    return EXIT_OURS


def _explain_usage(error: Exception) -> int:
    """Print a mistake in the arguments on one line, or the help if no command was given."""
    message = str(getattr(error, "format_message", lambda: str(error))())
    if message.startswith("Usage:"):
        print(message)
        return EXIT_USER
    _say(explain_usage(error, sys.argv[1:], [str(each.name) for each in app.registered_commands]))
    return EXIT_USER if isinstance(error, _USAGE_ERROR) else EXIT_OURS


def _say(message: str) -> None:
    print("tuner: " + " ".join(message.split("\n")), file=sys.stderr)


if __name__ == "__main__":
    main()
