"""The Python API: run a study, and read one that is stored.

    import tuner

    study = tuner.optimize(model="Qwen/Qwen2.5-0.5B", slo=["p99_ttft_ms<1500"], trials=60)
    print(study.conclusion["reason"], study.best.config)

`tuner` exports these names and loads this module on first use, so `import tuner` stays cheap.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from records.measured import BestTrial, best_trial
from records.trials import TrialRecord
from storage import open_store
from tuner.cancellation import Wishes
from tuner.errors import SettingError, UserError
from tuner.extras import need
from tuner.observers.fan_out import LineObserver
from tuner.settings.declared import OUTPUT, Setting, part
from tuner.settings.keywords import takes
from tuner.settings.study import StudySettings
from tuner.study.protocols import StudyObserver
from tuner.use_cases import files as export_use_case
from tuner.use_cases import optimize as optimize_use_case
from tuner.use_cases.places import find_study, storage_url

if TYPE_CHECKING:
    import pandas as pd

    from tuner.use_cases.report.plots import StudyPlots


class Study:
    """A stored study. Every property reads the database, so it shows the progress of a run in another process."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.storage_url = url
        """SQLAlchemy URL of the database; `optuna.load_study(study_name=…, storage=…)` takes it, too."""

    def __repr__(self) -> str:
        return f"Study({self.name!r})"

    @property
    def trials(self) -> list[TrialRecord]:
        """Every trial and every measurement of a finalist (`round` above 0), by number and round."""
        with closing(open_store(self.storage_url)) as store:
            return store.trials(self.name)

    @property
    def conclusion(self) -> Mapping[str, Any] | None:
        """The result: winner, reason, finalists with ratios and intervals, flag effects; None before the study ends."""
        with closing(open_store(self.storage_url)) as store:
            return find_study(store, self.name).conclusion

    @property
    def best(self) -> BestTrial | None:
        """The configuration that the study recommends; None before it ends, or if no trial satisfies the SLOs."""
        return best_trial(self.conclusion or {}, self.trials)

    def trials_dataframe(self) -> pd.DataFrame:
        """Return one row for each finished trial and round: state, score, configuration, metrics and timings."""
        from dashboards.frames import trials_frame

        return trials_frame(self.trials)

    @property
    def plot(self) -> StudyPlots:
        """The figures of the report, as Plotly figures: `study.plot.pareto().show()`."""
        need("plotly")
        from tuner.use_cases.report.plots import StudyPlots

        return StudyPlots(self.name, self.storage_url)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the report, one HTML file, and return its path.

        Raises:
            UserError: if the study has no finished trial, the file cannot be written, or the extra `report` is missing.
        """
        need("plotly")
        from tuner.use_cases.report.page import report

        return report([self.name], Path(path), self.storage_url)

    def export(self, path: str | os.PathLike[str], trial: int | None = None, format: str = "script") -> Path:
        """Write a file that starts the server of a trial, and return its path.

        The format `script` is a bash script that, with `--verify`, measures the server again. Formats with a second
        file write it beside the first.

        Args:
            path: the file's path.
            trial: number of the trial; None: the winner.
            format: `script`, `command`, `vllm-config`, `compose`, `kubernetes`, `kserve`, `ray-serve` or `systemd`.

        Raises:
            UserError: if there is no such trial or format, the trial has no metrics, the format cannot hold its server,
                or the file cannot be written.
        """
        return export_use_case.export(self.name, trial, Path(path), self.storage_url, format)[0]


@dataclass(frozen=True, kw_only=True)
class OptimizeSettings(StudySettings):
    """The keywords of `optimize`."""

    progress: Annotated[bool, Setting(OUTPUT, "", "Print a line for each trial to standard error.")] = False


@takes(OptimizeSettings)
def optimize(**given: Any) -> Study:
    """Run a study, or resume the one of the same name, and return it.

    The keywords are the options of `tuner optimize`; `max_concurrency` is `--users` and `num_prompts` is `--prompts`.
    Without a GPU the engine is simulated, and every trial has the provenance `simulated`.

    Raises:
        SettingError: for a setting that cannot work; `field` is the keyword.
        UserError: for anything else that the caller can correct.
        TunerError: for errors of the tuner or its infrastructure.
    """
    settings = OptimizeSettings(**given)
    observer = LineObserver() if settings.progress else StudyObserver()
    result = optimize_use_case.optimize(part(StudySettings, settings), observer, Wishes())
    return Study(result.spec.name, storage_url(settings.storage, create=False))


def load_study(name: str | None = None, storage: str | None = None) -> Study:
    """Return a stored study.

    Args:
        name: name of the study; None: the latest of the database.
        storage: file or SQLAlchemy URL of the database; None: tuner_study/tuner.db in the current folder.

    Raises:
        UserError: if there is no such database or study.
    """
    url = storage_url(storage, create=False)
    with closing(open_store(url)) as store:
        return Study(find_study(store, name).name, url)


__all__ = ["BestTrial", "SettingError", "Study", "UserError", "load_study", "optimize"]
