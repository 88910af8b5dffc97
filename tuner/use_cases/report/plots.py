"""The figures of a stored study as Plotly figures: `study.plot.pareto()`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from storage import open_store
from tuner.errors import UserError
from tuner.use_cases.report.charts import chart
from tuner.use_cases.report.page import reported_study

if TYPE_CHECKING:
    import plotly.graph_objects as go


class StudyPlots:
    """Draws the figures of a study, those of its report.

    Each method reads the database and returns a Plotly figure. It raises `UserError` where the study has no numbers for
    it, for example no record of single requests.
    """

    def __init__(self, name: str, url: str) -> None:
        """Draw the study `name` of the database at the SQLAlchemy URL `url`."""
        self._name, self._url = name, url

    def _figure(self, name: str) -> go.Figure:
        with closing(open_store(self._url)) as store:
            found = chart(reported_study(store, self._url, self._name), name)
        if found is None:
            raise UserError(f"study {self._name!r} has no numbers for the figure {name}; see `tuner study report`")
        return found

    def progress(self) -> go.Figure:
        """Return the score of each trial, the best so far, and failures."""
        return self._figure("progress")

    def pareto(self) -> go.Figure:
        """Return the front of the objectives, as ratios to the reference with 95 % intervals."""
        return self._figure("pareto")

    def importance(self) -> go.Figure:
        """Return the share of the score's variance that each parameter explains, with its interval."""
        return self._figure("importance")

    def slices(self) -> go.Figure:
        """Return the score against the values of each of the most important parameters."""
        return self._figure("slices")

    def parallel(self) -> go.Figure:
        """Return parallel coordinates: each trial as a line through its values."""
        return self._figure("parallel")

    def failures(self) -> go.Figure:
        """Return the share of the trials with a value that failed, by kind of failure."""
        return self._figure("failures")

    def noise(self) -> go.Figure:
        """Return every benchmark of the reference and of the winner, by launch."""
        return self._figure("noise")

    def percentiles(self) -> go.Figure:
        """Return the percentiles of TTFT, TPOT and ITL of the winner and the reference, in ms."""
        return self._figure("percentiles")

    def distributions(self) -> go.Figure:
        """Return the cumulative distributions of TTFT, TPOT and ITL of traffic, in ms."""
        return self._figure("distributions")

    def lengths(self) -> go.Figure:
        """Return completed and failed requests of traffic by prompt length and answer length, in tokens."""
        return self._figure("lengths")

    def classes(self) -> go.Figure:
        """Return the share of requests within the SLO of their class, by configuration."""
        return self._figure("classes")

    def rates(self) -> go.Figure:
        """Return latency by request rate, of a study that searched the capacity."""
        return self._figure("rates")

    def server(self) -> go.Figure:
        """Return the state of the server over time: requests, KV cache and preemptions."""
        return self._figure("server")

    def roofline(self) -> go.Figure:
        """Return the predicted place of the defaults and the winner on the roofline of the study's card."""
        return self._figure("roofline")

    def steps(self) -> go.Figure:
        """Return the predicted share of each part in the time of the engine's steps."""
        return self._figure("steps")
