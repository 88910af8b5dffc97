"""From searches to figures: medians over seeds with 95 % bootstrap intervals, differences by seed, a plot."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from optuna._hypervolume import compute_hypervolume

from benchmarks.search.play import Played, Record
from benchmarks.search.problems.problem import Config, Problem, maximised
from tuner.sampler.convergence import converged

CHECKPOINTS = (10, 15, 30, 60)
SHARES = (0.95, 0.99)
AFTER = 20
"""Trials after which a sampler should know what does not work."""
MIN_GAIN = 0.005
"""Where a study ends its search by default."""
RESAMPLES = 2000
WORST = math.log(2.0)
"""Of each objective: the hypervolume counts from half as good as the defaults."""


@dataclass(frozen=True)
class Summary:
    """One search in numbers.

    `curve` is the incumbent's score without noise after each trial, 0 while there is none, and `truths` those of the
    trials themselves, 0 for what is infeasible. `ended_at` are the virtual seconds at which trials ended. `claimed` is
    the last incumbent's measured score relative to its true one; `top` and `top_config` are the best true score among
    all trials, and whose it is. `outlooks` are what each trial was expected to gain.
    """

    problem: str
    family: str
    rival: str
    seed: int
    workers: int
    budget: int
    curve: tuple[float, ...]
    truths: tuple[float, ...]
    ended_at: tuple[float, ...]
    hypervolume: Mapping[str, float | None]
    infeasible: float | None
    claimed: float | None
    ask_s: float
    tell_s: float
    redrawn: int
    top: float
    top_config: Config
    outlooks: tuple[float | None, ...] = ()


def summarise(problem: Problem, record: Record, finalists: int = 1) -> Summary:
    """Return a search in numbers.

    Args:
        problem: what was searched.
        record: the search.
        finalists: how many of the best trials are known as they are, as if they were measured again; the best
            of them is the incumbent. 1: what was measured best, or what the sampler itself thinks best.
    """
    done = record.trials
    ranks = [_ranked(done[: k + 1])[:finalists] for k in range(len(done))]
    curve = [max((each.truth or 0.0 for each in best), default=0.0) for best in ranks]
    late = done[AFTER:]
    last = ranks[-1][0] if ranks and ranks[-1] else None
    top = max(done, key=lambda trial: trial.truth or 0.0)
    return Summary(
        problem=problem.name,
        family=problem.family,
        rival=record.rival,
        seed=record.seed,
        workers=record.workers,
        budget=record.budget,
        curve=tuple(curve),
        truths=tuple(trial.truth or 0.0 for trial in done),
        ended_at=tuple(trial.ended_at for trial in done),
        hypervolume={str(k): hypervolume(problem, done[:k]) for k in CHECKPOINTS},
        infeasible=sum(not trial.outcome.feasible for trial in late) / len(late) if late else None,
        claimed=_measured(last) / last.truth if last is not None and last.truth else None,
        ask_s=sum(trial.ask_s for trial in done[1:]) / max(1, len(done) - 1),
        tell_s=sum(trial.tell_s for trial in done) / len(done),
        redrawn=record.redrawn,
        top=top.truth or 0.0,
        top_config=dict(top.config),
        outlooks=tuple(trial.outlook for trial in done),
    )


def _ranked(trials: Sequence[Played]) -> list[Played]:
    """Return the best of the trials that ended, by what their sampler says or by what was measured."""
    leaders = trials[-1].leaders
    if leaders is not None:
        return [trials[place] for place in leaders]
    return sorted(_kept(trials), key=_measured, reverse=True)


def _kept(trials: Sequence[Played]) -> list[Played]:
    return [trial for trial in trials if trial.outcome.feasible and trial.outcome.score is not None]


def _measured(trial: Played) -> float:
    return trial.outcome.score or 0.0


def hypervolume(problem: Problem, trials: Sequence[Played]) -> float | None:
    """Return what feasible trials dominate, in logarithms of their improvement on the defaults, counted from half as
    good in every objective; the defaults alone have 1. None where they do not run."""
    reference = problem.reference
    if reference is None or min(reference) <= 0:
        return None
    losses = []
    for trial in trials:
        values = trial.outcome.values
        if not trial.outcome.feasible or values is None or min(values) <= 0:
            continue
        gains = [math.log(value / base) for value, base in zip(values, reference, strict=True)]
        signed = [gain if maximised(each) else -gain for gain, each in zip(gains, problem.objectives, strict=True)]
        if min(signed) > -WORST:
            losses.append([-gain for gain in signed])
    if not losses:
        return 0.0
    worst = np.full(len(reference), WORST)
    return float(compute_hypervolume(np.array(losses), worst)) / WORST ** len(reference)


def reached(curve: Sequence[float], wanted: float, budget: int) -> int:
    """Return after how many trials the incumbent first was that good; one more than the budget if it never was."""
    return next((k + 1 for k, score in enumerate(curve) if score >= wanted), budget + 1)


def at(curve: Sequence[float], trials: int) -> float:
    """Return the incumbent's score after so many trials, or after the last where a search ended before."""
    return curve[min(trials, len(curve)) - 1] if curve else 0.0


@dataclass(frozen=True)
class Figure:
    """A median (of differences: a mean) over seeds and its 95 % interval."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 2) -> str:
        """Return it as `0.95 [0.93, 0.97]`."""
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def figure(values: Sequence[float], of: Callable[..., Any] = np.median) -> Figure | None:
    """Return the median (or the mean) with the 2.5th and 97.5th percentile of those of resampled seeds; None without
    values."""
    if not values:
        return None
    known = np.array(values, dtype=float)
    drawn = np.random.default_rng(0).integers(len(known), size=(RESAMPLES, len(known)))
    low, high = np.percentile(of(known[drawn], axis=1), [2.5, 97.5])
    return Figure(float(of(known)), float(low), float(high))


def figures(runs: Sequence[Summary], best: float) -> dict[str, list[float]]:
    """Return, by figure, one value a seed, in the order of `runs`; scores are relative to the best known.

    What was not reached (a checkpoint beyond the budget) or cannot be said has no value.
    """
    found: dict[str, list[float]] = {}
    for share in SHARES:
        found[f"trials_to_{share:.0%}"] = [reached(run.curve, share * best, run.budget) for run in runs]
    found["hours_to_95%"] = [_hours(run, SHARES[0] * best) for run in runs]
    for k in CHECKPOINTS:
        found[f"score_{k}"] = [at(run.curve, k) / best for run in runs if k <= run.budget]
    for k in CHECKPOINTS:
        found[f"hypervolume_{k}"] = [
            value for run in runs if k <= run.budget and (value := run.hypervolume[str(k)]) is not None
        ]
    found["proposed_15"] = [statistics.fmean(run.truths[1:15] or [0.0]) / best for run in runs]
    found["infeasible"] = [run.infeasible for run in runs if run.infeasible is not None]
    found["claimed"] = [run.claimed for run in runs if run.claimed is not None]
    ends = [(run, _settled_after(run)) for run in runs if any(each is not None for each in run.outlooks)]
    found["settled_trials"] = [end for _, end in ends]
    found["settled_score"] = [at(run.curve, end) / run.curve[-1] for run, end in ends if run.curve[-1]]
    found["settled_hours"] = [run.ended_at[end - 1] / run.ended_at[-1] for run, end in ends]
    found["ask_s"] = [run.ask_s for run in runs]
    return found


def _settled_after(run: Summary) -> int:
    """Return after how many trials a study would have ended: the search has settled, or its budget is spent."""
    counts = range(1, len(run.outlooks) + 1)
    return next((k for k in counts if converged(run.outlooks[:k], MIN_GAIN)), len(run.outlooks))


def _hours(run: Summary, wanted: float) -> float:
    """Return the virtual hours until the incumbent was that good, or all of them."""
    place = min(reached(run.curve, wanted, run.budget), len(run.curve))
    return run.ended_at[place - 1] / 3600


def differences(ours: Sequence[Summary], others: Sequence[Summary], best: float) -> dict[str, Figure | None]:
    """Return the mean differences ours - theirs over the seeds that both have."""
    mine, theirs = ({run.seed: run for run in runs} for runs in (ours, others))
    seeds = sorted(mine.keys() & theirs.keys())
    one, other = (figures([runs[seed] for seed in seeds], best) for runs in (mine, theirs))
    names = [name for name in one if len(one[name]) == len(other[name]) == len(seeds)]
    return {name: figure([a - b for a, b in zip(one[name], other[name], strict=True)], np.mean) for name in names}


def plot(runs: Mapping[str, Mapping[str, Sequence[Summary]]], best: Mapping[str, float], file: Path) -> None:
    """Draw score against trials, a panel a problem, a line with its interval a sampler."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(3, len(runs))
    rows = -(-len(runs) // columns)
    drawn, panels = pyplot.subplots(rows, columns, figsize=(5 * columns, 3.6 * rows), squeeze=False)
    names = list(dict.fromkeys(rival for by_rival in runs.values() for rival in by_rival))
    colours = {name: "black" if name == "ours" else f"C{place}" for place, name in enumerate(names)}
    for panel, (problem, by_rival) in zip(panels.flat, runs.items(), strict=False):
        longest = max(len(run.curve) for each in by_rival.values() for run in each)
        for rival, each in by_rival.items():
            table = [[at(run.curve, k) / best[problem] for k in range(1, longest + 1)] for run in each]
            steps = [figure(column) for column in zip(*table, strict=True)]
            shown = [step for step in steps if step is not None]
            x = range(1, longest + 1)
            width = 2.2 if rival == "ours" else 1.2
            panel.plot(x, [step.value for step in shown], color=colours[rival], label=rival, linewidth=width)
            lows, highs = [step.low for step in shown], [step.high for step in shown]
            panel.fill_between(x, lows, highs, color=colours[rival], alpha=0.12, linewidth=0)
        panel.set_title(problem, fontsize=10)
        panel.set_xlabel("trials")
        panel.set_ylabel("score / best known")
    for panel in list(panels.flat)[len(runs) :]:
        panel.set_axis_off()
    handles = {
        name: line for panel in panels.flat for line, name in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    drawn.legend(handles.values(), handles.keys(), loc="lower center", ncols=6, fontsize=9, frameon=False)
    drawn.tight_layout(rect=(0, 0.4 / (3.6 * rows), 1, 1))
    drawn.savefig(file, dpi=110)
    pyplot.close(drawn)
