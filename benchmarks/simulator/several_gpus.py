"""Compares predictions for several GPUs with published runs, without fitting anything.

    python -m benchmarks.simulator.several_gpus [--json]

`reference/several_gpus.yaml` has the runs and their sources. The program prints each as predicted and published. Runs
of one source, card, model and batch with different numbers of GPUs make a group: for these it also prints the factor
from the fewest GPUs of the group, in which what is common to all numbers of GPUs, such as an old engine's host work,
cancels in part.

Lengths of ShareGPT's requests are quantiles of an exponential distribution with the published mean, in random order.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from benchmarks.command_line import documented_parser
from benchmarks.simulator.rows import REFERENCE_FOLDER, shape_of
from benchmarks.text_table import print_table
from search_spaces import hardware_named
from tuner.engines.simulator.client import SimulatedClient, SimulatedRequest
from tuner.engines.simulator.flags import SIMULATED_PACKAGES, default_version
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.prediction import Platform, build_server
from tuner.engines.simulator.sequence import Prompt

LONGEST = 1000
"""Tokens of the longest prompt and answer of ShareGPT's requests, which the client's filter limits to about as many."""


@dataclass(frozen=True)
class Compared:
    """A published run and its prediction.

    Attributes:
        run: the row of the file.
        published: seconds, or tokens per second.
        predicted: in the same unit.
        published_factor: the published value over that with the fewest GPUs of the group; None for the latter.
        predicted_factor: the same of the predictions.
        communication: the predicted share of communication in the time of all steps.
    """

    run: Mapping[str, Any]
    published: float
    predicted: float
    published_factor: float | None
    predicted_factor: float | None
    communication: float

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.published - 1


def compare(sources: frozenset[str] | None = None) -> list[Compared]:
    """Return the published runs of some sources (None: of all) with their predictions."""
    rows = yaml.safe_load((REFERENCE_FOLDER / "several_gpus.yaml").read_text(encoding="utf-8"))
    least: dict[tuple[object, ...], tuple[float, float]] = {}
    compared = []
    for row in rows:
        if sources is not None and row["source"] not in sources:
            continue
        published = row.get("latency_s") or row["output_throughput"]
        predicted, communication = predict(row)
        group = tuple(row[name] for name in ("source", "card", "model", "batch", "input", "output"))
        factors: tuple[float | None, float | None] = (None, None)
        if group in least:
            factors = published / least[group][0], predicted / least[group][1]
        least.setdefault(group, (published, predicted))
        compared.append(Compared(row, published, predicted, *factors, communication))
    return compared


def predict(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the predicted value of a row, and the share of communication in the time of all steps."""
    card = hardware_named(row["card"])
    version = tuple(map(int, default_version(card).split(".")))
    site = Platform(card, parameters_of(card.key), version, SIMULATED_PACKAGES, row["gpus"])
    arguments = ("--tensor-parallel-size", str(row["gpus"]), *row.get("args", ()))
    server = build_server(site, arguments, {}, shape_of(row["model"]))
    lengths = _equal(row) if "latency_s" in row else drawn_lengths(row["input"], row["output"], row["batch"])
    requests = [SimulatedRequest(Prompt(index, *each), "", None, None) for index, each in enumerate(lengths)]
    run = server.run(SimulatedClient(requests, len(requests), None, None, 0.0), 0, noise=False)
    seconds = max(request.end_s or 0.0 for request in run.requests)
    share = run.seconds.get("communication", 0.0) / sum(run.seconds.values())
    tokens = sum(request.prompt.output for request in run.requests)
    return (seconds if "latency_s" in row else tokens / seconds), share


def _equal(row: Mapping[str, Any]) -> list[tuple[int, int]]:
    return [(row["input"], row["output"])] * row["batch"]


def drawn_lengths(prompt: float, answer: float, count: int) -> list[tuple[int, int]]:
    """Return lengths of prompts and answers: quantiles of exponential distributions, each in an order of its own.

    Args:
        prompt, answer: mean lengths in tokens.
        count: number of requests.
    """
    order = random.Random(0)
    columns = []
    for mean in (prompt, answer):
        lengths = [-mean * math.log(1 - (place + 0.5) / count) for place in range(count)]
        column = [min(LONGEST, max(4, round(length))) for length in lengths]
        order.shuffle(column)
        columns.append(column)
    return list(zip(*columns, strict=True))


def main() -> None:
    """Predict the published runs and print the comparison."""
    parser = documented_parser(__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json = parser.parse_args().json
    compared = compare()
    if as_json:
        rows = [{**each.run, "predicted": each.predicted, "error": each.error} for each in compared]
        print(json.dumps(rows, indent=1))
        return
    print_table(CAPTION, HEADINGS, [_cells(each) for each in compared])


CAPTION = (
    "Published runs and predictions: seconds of a batch, or output tokens per second. Factors are those from the "
    "fewest GPUs of a group, published / predicted. The last column is the predicted share of communication."
)
HEADINGS = ("source", "card", "model", "GPUs", "batch", "published", "predicted", "error", "factors", "communication")


def _cells(each: Compared) -> list[str]:
    run = each.run
    unit = "s" if "latency_s" in run else "tok/s"
    factors = ""
    if each.published_factor is not None and each.predicted_factor is not None:
        factors = f"{each.published_factor:.2f} / {each.predicted_factor:.2f}"
    return [
        *(run["source"], run["card"], run["model"].split("/")[1], str(run["gpus"]), str(run["batch"])),
        *(f"{each.published:,.4g} {unit}", f"{each.predicted:,.4g} {unit}", f"{each.error:+.0%}"),
        *(factors, f"{each.communication:.0%}"),
    ]


if __name__ == "__main__":
    main()
