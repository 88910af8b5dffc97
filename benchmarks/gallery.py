"""Write docs/gallery.md: every recorded study as a row, from its file in docs/reports/data.

    python -m benchmarks.gallery

A row's ratio and interval are computed by today's method from the scores of the study's rounds. What the files do not
say is in `reference/gallery.yaml`: card, model, engine and load.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tuner.scoring.compare import Ratio, paired_ratio, residual_noise

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gallery.md"
DATA = ROOT / "docs" / "reports" / "data"
_FACTS = Path(__file__).parent / "reference" / "gallery.yaml"
_MOST_FLAGS = 3
_HEADINGS = ("card, report", "score", "model, engine, load", "best finalist", "trials, rounds")
_NO_ROUND = "none: no round measured both"

_BEGINNING = """# Gallery

Every study on real hardware whose finals are recorded. All rows are measured; none is simulated. All models have random
weights in the shapes of public ones, so quantization and drafts may gain more or less with real ones.

*The best finalist of each study: the ratio of its score to that of the defaults with its 95 % interval, over the rounds
that measured both. Bold: the whole interval is above 1. Without an interval there were too few rounds for one, and the
ratio proves nothing.*

"""

_END = """
- **Intervals** are computed [as the tuner does today](design/measurement.md#confidence), from the scores of the rounds
  in `docs/reports/data`. Each score has the objectives of its study, which the report names.
- **No rounds** were measured in [a study of experts](reports/2026-11-28-h200-study.md) on two H200s, which ended before
  its finals. Other reports measure grids, costs or faults, and have no winner.
- **No study** is on an A100, L40S, L4, A10 or T4. [Send a study](../CONTRIBUTING.md#send-figures).

*Made by `python -m benchmarks.gallery`.*
"""


@dataclass(frozen=True)
class Finalist:
    """A configuration that rounds measured beside the defaults."""

    number: int
    ratio: Ratio

    @property
    def shown(self) -> str:
        """The ratio with its interval, in bold if the interval is above 1."""
        if self.ratio.low is None or self.ratio.high is None:
            return f"×{self.ratio.ratio:.2f}"
        text = f"×{self.ratio.ratio:.2f} [{self.ratio.low:.2f}, {self.ratio.high:.2f}]"
        return f"**{text}**" if self.ratio.beyond_noise else text


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


def page() -> str:
    """Return the page as text."""
    facts = yaml.safe_load(_FACTS.read_text(encoding="utf-8"))
    lines = [_HEADINGS, ["---"] * len(_HEADINGS), *(_row(study, facts) for study in facts["studies"])]
    return _BEGINNING + "".join(f"| {' | '.join(line)} |\n" for line in lines) + _END


def _row(study: Mapping[str, Any], facts: Mapping[str, Any]) -> Sequence[str]:
    rows = read_rows(DATA / f"{study['data']}.csv")
    best = best_finalist(rows)
    trials = sum(row["kind"] in ("baseline", "search", "enqueued") for row in rows)
    card = f"{study['gpus']} × {study['card']}" if study["gpus"] > 1 else str(study["card"])
    load = facts["loads"].get(study["load"], study["load"])
    return (
        f"{card}, [{study['report'][:10]}](reports/{study['report']}.md)",
        "" if best is None else best.shown,
        f"{study['model']}, {study['engine']}: {load}",
        _NO_ROUND if best is None else _flags(best.number, rows, facts["engine_defaults"]),
        f"{trials}, {0 if best is None else best.ratio.rounds}",
    )


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a study's file: its trials and the measurements of its rounds."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def best_finalist(rows: Iterable[Mapping[str, str]]) -> Finalist | None:
    """Return the finalist with the highest ratio to the defaults; None if no round measured both."""
    cells = {
        (int(row["number"]), int(row["round"])): math.log(float(row["score"]))
        for row in rows
        if row["kind"] == "confirm" and row["score"]
    }
    noise = residual_noise(cells)
    numbers = sorted({number for number, _ in cells} - {0})
    found = []
    for number in numbers:
        rounds = sorted(place for each, place in cells if each == number and (0, place) in cells)
        if rounds:
            differences = [cells[number, place] - cells[0, place] for place in rounds]
            found.append(Finalist(number, paired_ratio(differences, noise, len(numbers))))
    return max(found, key=lambda each: each.ratio.ratio, default=None)


def _flags(number: int, rows: Iterable[Mapping[str, str]], engine_defaults: Mapping[str, str]) -> str:
    """Return what a configuration changes, at most `_MOST_FLAGS` of it."""
    row = next(each for each in rows if int(each["number"]) == number and each["kind"] != "confirm")
    given = {name.removeprefix("config."): value for name, value in row.items() if name.startswith("config.") and value}
    engine = given.pop("engine", None)
    changed = [f"`{name}={value}`" for name, value in given.items() if engine_defaults.get(name) != value]
    changed.sort(key=lambda text: not text.startswith(("`quantization", "`speculative")))
    more = [f"{len(changed) - _MOST_FLAGS} more"] if len(changed) > _MOST_FLAGS else []
    return ", ".join([*([engine] if engine else []), *changed[:_MOST_FLAGS], *more])


if __name__ == "__main__":
    main()
