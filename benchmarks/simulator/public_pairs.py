"""Compares the signs of predicted effects with those of published pairs, without fitting anything.

    python -m benchmarks.simulator.public_pairs [--half] [--kind TEXT] [--json]

Two runs of a pair differ in one choice (`reference/public_pairs.yaml`). The effect is the ratio of their throughputs,
and its sign is faster, slower, or flat within 2 %. The program prints each pair, the share of right signs of each
kind, and the pairs that cannot be predicted with the reason; these count neither as right nor as wrong. A server that
is predicted not to start is a wrong prediction. With `--half` it says which signs change with half of the requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from benchmarks.command_line import documented_parser
from benchmarks.simulator.rows import REFERENCE_FOLDER, shape_of
from benchmarks.simulator.several_gpus import drawn_lengths
from benchmarks.text_table import MISSING, number_text, print_table
from search_spaces import ModelShape, hardware_named, version_tuple
from search_spaces.catalogue.models import known_configs
from tuner.engines.simulator.client import SimulatedClient, SimulatedRequest
from tuner.engines.simulator.flags import SIMULATED_PACKAGES
from tuner.engines.simulator.memory import StartFailed
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.precision import ConfigRefused, NotSimulated
from tuner.engines.simulator.prediction import Platform, build_server
from tuner.engines.simulator.sequence import Prompt

FLAT = 0.02
"""Effects up to this size are flat."""
NOT_STARTED = 0.0
"""The throughput of a server that does not start."""
_METRICS = {"throughput": "output_throughput", "ttft": "mean_ttft_ms", "tpot": "mean_tpot_ms"}


@dataclass(frozen=True)
class Pair:
    """A published pair and its prediction; ratios are those of the run over its baseline.

    Attributes:
        kind: what differs.
        id: of the run that is not the baseline.
        beside: whether the pair was found while the simulator was mended, after the listed ones.
        published: the ratio of throughputs.
        predicted: the same; None if it cannot be predicted.
        ttft, tpot: the published and predicted ratios of mean latencies; None where one of them is absent.
        lacking: why it cannot be predicted; None if it can.
    """

    kind: str
    id: str
    beside: bool
    published: float
    predicted: float | None
    ttft: tuple[float, float] | None = None
    tpot: tuple[float, float] | None = None
    lacking: str | None = None

    @property
    def is_right(self) -> bool | None:
        """Whether the predicted sign is the published one; None without a prediction."""
        return None if self.predicted is None else sign(self.predicted) == sign(self.published)


def sign(ratio: float) -> int:
    """Return 1 for faster, -1 for slower, and 0 for flat."""
    return 0 if abs(ratio - 1.0) <= FLAT else 1 if ratio > 1.0 else -1


def compare(size: float = 1.0, kind: str = "") -> list[Pair]:
    """Return the published pairs of the kinds that contain a text, with their predictions.

    Args:
        size: factor on the number of requests.
        kind: the text.
    """
    document = yaml.safe_load((REFERENCE_FOLDER / "public_pairs.yaml").read_text(encoding="utf-8"))
    groups = [group for group in document["groups"] if kind in group["kind"]]
    return [pair for group in groups for pair in _pairs(document, group, size)]


def _pairs(document: Mapping[str, Any], group: Mapping[str, Any], size: float) -> Iterator[Pair]:
    runs = {run["id"]: run for run in group["runs"]}
    measured: dict[str, Mapping[str, float] | str] = {}
    for run in runs.values():
        if "baseline" not in run:
            continue
        names = (run["baseline"], run["id"])
        for name in names:
            if name not in measured:
                measured[name] = _predicted(document, group, runs[name], size)
        yield _pair(group, [runs[name] for name in names], [measured[name] for name in names])


def _pair(group: Mapping[str, Any], runs: list[Mapping[str, Any]], predicted: list[Mapping[str, float] | str]) -> Pair:
    """Return the pair of a baseline and a run."""
    published = runs[1]["value"] / runs[0]["value"]
    published = 1.0 / published if group.get("lower_is_better") else published
    common = group["kind"], runs[1]["id"], bool(group.get("beside")), published
    before, after = predicted
    if isinstance(before, str) or isinstance(after, str):
        return Pair(*common, None, lacking=before if isinstance(before, str) else str(after))
    ratio = after["throughput"] / before["throughput"] if before["throughput"] else NOT_STARTED
    ttft, tpot = (_ratios([*runs, before, after], name) for name in ("ttft", "tpot"))
    return Pair(*common, ratio, ttft, tpot)


def _ratios(metrics: Sequence[Mapping[str, Any]], name: str) -> tuple[float, float] | None:
    """Return the published and the predicted ratio of a latency; None if one of the four values is absent."""
    values = [each.get(name) for each in metrics]
    first, second, third, fourth = (value or 0.0 for value in values)
    return (second / first, fourth / third) if all(values) else None


def _predicted(
    document: Mapping[str, Any], group: Mapping[str, Any], run: Mapping[str, Any], size: float
) -> Mapping[str, float] | str:
    """Return the predicted metrics of a run, or why there are none."""
    if "lacking" in group:
        return str(group["lacking"])
    card, gpus = hardware_named(run["card"]), run.get("gpus", 1)
    words = [*group["args"], *run.get("args", ()), *(("--tensor-parallel-size", str(gpus)) if gpus > 1 else ())]
    site = Platform(card, parameters_of(card.key), version_tuple(group["version"]), SIMULATED_PACKAGES, gpus)
    try:
        model = run.get("model", group["model"])
        server = build_server(site, words, {}, _shape(document, model, run.get("checkpoint")))
    except NotSimulated as error:
        return str(error)
    except (ConfigRefused, StartFailed):
        return {"throughput": NOT_STARTED}
    except SystemExit as error:
        return str(error)
    simulated = server.run(_client(run.get("load") or group["load"], size), 0, noise=False)
    metrics = simulated.bench_metrics((50, 99))
    found = {name: metrics[key] or 0.0 for name, key in _METRICS.items()}
    return {**found, "throughput": 1000.0 / found["tpot"]} if group.get("decodes") and found["tpot"] else found


def _shape(document: Mapping[str, Any], model: str, checkpoint: str | None) -> ModelShape:
    config = document["configs"].get(model)
    if config is None and checkpoint is None:
        return shape_of(model)
    config = config or known_configs()[model]["config"]
    quantization = {} if checkpoint is None else {"quantization_config": document["checkpoints"][checkpoint]}
    return ModelShape.from_config_json({**config, **quantization})


def _client(load: Mapping[str, Any], size: float) -> SimulatedClient:
    count = max(1, round(load["prompts"] * size))
    if load.get("drawn"):
        lengths = drawn_lengths(load["input"], load["output"], count)
    else:
        lengths = [(load["input"], load["output"])] * count
    requests = [SimulatedRequest(Prompt(index, *each), "", None, None) for index, each in enumerate(lengths)]
    return SimulatedClient(requests, load.get("users", count), None, None, 0.0)


def shares(pairs: list[Pair]) -> dict[str, tuple[int, int, int]]:
    """Return by kind the number of right signs, of predicted pairs and of pairs; the last rows are those of all."""
    parts = {kind: [pair for pair in pairs if pair.kind == kind] for kind in dict.fromkeys(pair.kind for pair in pairs)}
    parts["listed"] = [pair for pair in pairs if not pair.beside]
    parts["beside"] = [pair for pair in pairs if pair.beside]
    return {name: _counts(part) for name, part in {**parts, "all": pairs}.items()}


def _counts(pairs: list[Pair]) -> tuple[int, int, int]:
    right = sum(pair.is_right is True for pair in pairs)
    return right, sum(pair.predicted is not None for pair in pairs), len(pairs)


def main() -> None:
    """Predict the pairs and print the comparison."""
    parser = documented_parser(__doc__)
    parser.add_argument("--half", action="store_true", help="name the signs that change with half of the requests")
    parser.add_argument("--kind", default="", help="only kinds whose name contains this text")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    pairs = compare(kind=arguments.kind)
    if arguments.json:
        print(json.dumps([{**asdict(pair), "right": pair.is_right} for pair in pairs], indent=1))
        return
    predicted = [pair for pair in pairs if pair.predicted is not None]
    print_table(CAPTION, HEADINGS, [_cells(pair) for pair in predicted])
    rows = [[name, *map(str, counts)] for name, counts in shares(pairs).items()]
    print_table("Right signs of throughput by kind.", ("kind", "right", "predicted", "pairs"), rows)
    print("\nNot predicted:")
    for pair in pairs:
        if pair.lacking is not None:
            print(f"  {pair.id} ({sign(pair.published):+d}): {pair.lacking}")
    if arguments.half:
        again = {pair.id: pair.predicted for pair in compare(0.5, arguments.kind)}
        changed = [pair.id for pair in predicted if sign(again[pair.id] or 0.0) != sign(pair.predicted or 0.0)]
        print(f"\nOther signs with half of the requests: {', '.join(changed) or 'none'}")


CAPTION = (
    "Published pairs: ratio of throughput of a run to its baseline, published and predicted, and of mean latencies "
    "(published / predicted). The verdict is that on the sign of throughput; an effect within 2 % is flat."
)
HEADINGS = ("pair", "published", "predicted", "verdict", "TTFT", "TPOT")


def _cells(pair: Pair) -> list[str]:
    latencies = [
        MISSING if each is None else f"{number_text(each[0], 2)} / {number_text(each[1], 2)}"
        for each in (pair.ttft, pair.tpot)
    ]
    ratios = [number_text(pair.published, 3), number_text(pair.predicted, 3)]
    return [pair.id, *ratios, "right" if pair.is_right else "wrong", *latencies]


if __name__ == "__main__":
    main()
