"""Writes searches to JSON files, and reads those of earlier runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.search.report.figures import SummariesBySampler, estimate, seed_values
from benchmarks.search.report.summary import SearchSummary
from benchmarks.search.samplers.catalogue import RESIDUAL_NAME


def read_summaries(file: Path, problems: Sequence[str], premise: Mapping[str, Any]) -> list[SearchSummary]:
    """Return the searches in a file of an earlier run.

    Only the residual sampler reads the prior, so searches of other samplers may have had another kind of prior.

    Args:
        file: a file of `--json`.
        problems: the names of the problems to return.
        premise: the settings of this run.

    Raises:
        SystemExit: if the file's settings differ from the premise.
    """
    data = json.loads(file.read_text(encoding="utf-8"))
    recorded = data["premise"]
    same_prior = recorded["prior"] == premise["prior"]
    differing = {key: (recorded.get(key), premise.get(key)) for key in {*recorded, *premise} - {"prior"}}
    differing = {key: pair for key, pair in differing.items() if pair[0] != pair[1]}
    if differing:
        texts = [f"{key} {then!r} instead of {now!r}" for key, (then, now) in sorted(differing.items())]
        raise SystemExit(f"--reuse {file}: made with {', '.join(texts)}; give the same options, or leave the file out")
    summaries = [SearchSummary(**entry) for entry in data["runs"]]
    return [run for run in summaries if run.problem in problems and (same_prior or run.sampler != RESIDUAL_NAME)]


def results_data(
    runs: Mapping[str, SummariesBySampler], best: Mapping[str, float], premise: Mapping[str, Any]
) -> dict[str, object]:
    """Return every search and every figure as plain data.

    Args:
        runs: the searches by problem and sampler.
        best: the best known score of each problem.
        premise: the settings of this run.
    """
    figures = {
        problem: {sampler: _estimates(each, best[problem]) for sampler, each in by_sampler.items()}
        for problem, by_sampler in runs.items()
    }
    searches = [asdict(run) for by_sampler in runs.values() for each in by_sampler.values() for run in each]
    return {"premise": premise, "best": best, "figures": figures, "runs": searches}


def _estimates(runs: Sequence[SearchSummary], best: float) -> dict[str, dict[str, float] | None]:
    estimates = {figure: estimate(values) for figure, values in seed_values(runs, best).items()}
    return {figure: None if found is None else asdict(found) for figure, found in estimates.items()}
