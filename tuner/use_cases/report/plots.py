"""The figures of a stored study as Plotly figures: `study.plot.pareto()`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from storage import open_store
from tuner.errors import UserError
from tuner.use_cases.report.charts import CHARTS, chart
from tuner.use_cases.report.page import reported_study

if TYPE_CHECKING:
    import plotly.graph_objects as go


class StudyPlots:
    """Draws the figures of a study: each one of its report is a method, see `tuner.use_cases.report.charts`.

    Each method reads the database and returns a Plotly figure. It raises `UserError` where the study has no numbers for
    it, for example no record of single requests.
    """

    def __init__(self, name: str, url: str) -> None:
        """Draw the study `name` of the database at the SQLAlchemy URL `url`."""
        self._name, self._url = name, url

    def __dir__(self) -> list[str]:
        return [*CHARTS]

    def __getattr__(self, name: str) -> Callable[[], go.Figure]:
        if name not in CHARTS:
            raise AttributeError(f"there is no figure {name!r}; figures: {', '.join(CHARTS)}")
        draw = functools.partial(self._figure, name)
        draw.__doc__ = CHARTS[name].__doc__
        return draw

    def _figure(self, name: str) -> go.Figure:
        with closing(open_store(self._url)) as store:
            found = chart(reported_study(store, self._url, self._name), name)
        if found is None:
            raise UserError(f"study {self._name!r} has no numbers for the figure {name}; see `tuner study report`")
        return found
