"""`tuner optimize`: the main job."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from tuner.cli.help import flag
from tuner.cli.options import AsJson, takes_settings
from tuner.settings.declared import OUTPUT
from tuner.settings.study import StudySettings


@takes_settings(StudySettings)
def optimize(
    settings: StudySettings,
    plain: Annotated[
        bool,
        flag(OUTPUT, "Print one line per trial instead of a live view.", "--plain"),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find the best configuration and write it as a script.

    Searches, measures the finalists and the defaults again in rounds, and writes best_serve.sh. Exits with 3 if no
    configuration meets the SLOs (the script is then of the nearest one, and says so), and with 4 if --timeout ended the
    run before it had a result; the same command then continues it.

    Flags after `--` are passed to every server:

    tuner optimize --model DIR -- --load-format dummy
    """
    raise typer.Exit(_run(settings, plain=plain, as_json=as_json))


def _run(settings: StudySettings, *, plain: bool, as_json: bool) -> int:
    """Run the study behind a view, print its result and return the exit code."""
    from tuner.cancellation import Wishes
    from tuner.cli.output.pages.optimize import report
    from tuner.cli.output.progress.views import new_view
    from tuner.cli.signals import stop_on_signals
    from tuner.use_cases.optimize import optimize

    view = new_view(plain)
    with stop_on_signals() as stop, closing(view):
        result = optimize(settings, view, Wishes(stop))
    return report(result, as_json=as_json)
