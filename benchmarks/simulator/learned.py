"""How well a host's first measured trials predict its other ones: order and error bands, before and after them.

    python -m benchmarks.simulator.learned [--trials 4 8] [--within] [--hosts NAME ...]

The tables and studies of `benchmarks/reference` and `docs/reports/data` were measured on several hosts. Each is
predicted beside the usual host of an H200 (`hardware.yaml`), as by a tuner that never ran there; the first trials are
its lessons (`tuner.engines.simulator.learning`), and the rest is predicted. A table's rows are dealt in a random order,
a study's in its own. Before and after are compared over the same rows. With `--within`, each row but the first is
predicted as by a study that learns while it runs, with the rows before it; the number of moves is how often its
predictions changed. A row with drafts is predicted, and is no lesson. Printed are Spearman's rank correlation, the
median of |ln(predicted / measured)|, the share of rows within their bands, and the median band.

The stored parameters of the simulator were fitted to the H200 tables, the experts and the studies; `slow host` and
`other host` were in no fit.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.stats import spearmanr

from benchmarks.simulator.bench_serve import BenchServeWorkload
from benchmarks.simulator.rows import (
    HOST_VALUES,
    REFERENCE_FOLDER,
    Row,
    h200,
    h200_experts,
    predict,
    read_table,
    shape_of,
)
from benchmarks.simulator.studies import recorded_studies, study_rows
from records.lessons import Lesson, Site
from search_spaces import hardware_named
from tuner.engines.simulator.learning import (
    LEARNED,
    HostPosterior,
    Linearised,
    Metrics,
    follow,
    lesson_of,
    linearised,
    posterior,
)
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.prediction import Platform

METRICS = ("output_throughput", "p99_tpot_ms", "p99_ttft_ms")
LEAST_ROWS = 4
USERS_50 = BenchServeWorkload(200, 50, 512, 512, seed=0)
RATE_20 = BenchServeWorkload(240, 256, 1024, 256, range_ratio=0.7, rate=20.0, seed=0)
CARD = hardware_named("h200")
PLATFORM = Platform(CARD, parameters_of("h200"), (0, 25, 1), frozenset())
SITE = Site("", "", "", "", "")


@dataclass(frozen=True)
class Host:
    """The rows of one host, the first of which are its lessons."""

    name: str
    rows: Sequence[Row]


def hosts() -> list[Host]:
    """Return all recorded hosts; the experts of one GPU are a host with a load of its own for each row."""
    tables = {row.group: [each for each in h200() if each.group == row.group] for row in h200()}
    small, dense = "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-7B-Instruct"
    tables["slow host"] = read_table(REFERENCE_FOLDER / "h200_slow_host_a05.jsonl", "h200", small, USERS_50)
    tables["other host"] = [
        *read_table(REFERENCE_FOLDER / "h200_other_host_a05.jsonl", "h200", small, USERS_50),
        *read_table(REFERENCE_FOLDER / "h200_other_host_b7.jsonl", "h200", dense, RATE_20),
    ]
    mixture = shape_of("Qwen/Qwen3-30B-A3B")
    tables["experts"] = [row for row in h200_experts() if row.gpus == 1 and row.model == mixture]
    order = np.random.default_rng(0)
    found = []
    for name, rows in tables.items():
        names = [row.group if name == "experts" else row.id for row in rows]
        dealt = list(order.permutation([*dict.fromkeys(names)]))
        places = sorted(range(len(rows)), key=[dealt.index(each) for each in names].__getitem__)
        found.append(Host(name, [rows[place] for place in places]))
    return found + [Host(study.name, study_rows(study)) for study in recorded_studies()]


def predicted(row: Row, platform: Platform) -> Metrics:
    """Return the prediction of a row with the learned parameters of a platform."""
    changes = {name: getattr(platform.parameters, name) for name in LEARNED if name not in HOST_VALUES}
    of_host = {name: getattr(platform.card, name) for name in HOST_VALUES}
    return predict(replace(row, card=CARD), {**changes, **of_host})


@dataclass(frozen=True)
class Compared:
    """One metric of one row: measured, predicted, and the band of the prediction."""

    measured: float
    predicted: float
    band: float

    @property
    def error(self) -> float:
        """|ln(predicted / measured)|."""
        return abs(math.log(self.predicted / self.measured))


def linearise(row: Row, point: Mapping[str, float]) -> Linearised:
    """Return a row's prediction and slopes at learned parameters."""
    found = linearised(PLATFORM, partial(predicted, row), point, experts=row.model.is_mixture_of_experts)
    assert found is not None
    return found


def with_lesson(lessons: Sequence[Lesson], row: Row, here: Linearised) -> list[Lesson]:
    """Return lessons and that of a row, if it has one, computed again where all of them put the host."""
    made = None if "--speculative-config" in row.args else lesson_of(SITE, {}, *here, row.metrics)
    told = None if made is None else posterior([*lessons, made])
    if told is None:
        return [*lessons]
    again = lesson_of(SITE, told.point, *linearise(row, told.point), row.metrics)
    return [*lessons, *([] if again is None else [again])]


def compare(rows: Sequence[Row], known: HostPosterior | None) -> dict[str, list[Compared]]:
    """Return predictions beside measurements, by metric; None: nothing is known of the host."""
    found: dict[str, list[Compared]] = {metric: [] for metric in METRICS}
    for row in rows:
        if known is None:
            metrics, bands = predicted(row, PLATFORM), {}
        else:
            metrics, slopes = linearise(row, known.point)
            bands = known.bands(slopes)
        for metric, compared in found.items():
            compared += compared_in(metric, row, metrics, bands)
    return found


def compared_in(metric: str, row: Row, metrics: Metrics, bands: Mapping[str, float]) -> list[Compared]:
    """Return a metric of a row beside its prediction, if there is one."""
    value = metrics.get(metric)
    return [Compared(row.metrics[metric], value, math.log1p(bands.get(metric, math.inf)))] if value else []


def within(rows: Sequence[Row]) -> tuple[dict[str, list[Compared]], int]:
    """Return predictions beside measurements in a study that learns while it runs, and how often it predicted anew."""
    found: dict[str, list[Compared]] = {metric: [] for metric in METRICS}
    lessons: list[Lesson] = []
    used, moves = None, 0
    for row in rows:
        here = linearise(row, {})
        known = posterior(lessons)
        if known is not None:
            metrics, bands = (
                here[0] if used is None else predicted(row, used.applied_to(PLATFORM)),
                known.bands(here[1]),
            )
            for metric, compared in found.items():
                compared += compared_in(metric, row, metrics, bands)
        lessons = with_lesson(lessons, row, here)
        before, used = used, follow(None, used, lessons)
        moves += used is not before
    return found, moves


def line(label: str, found: Mapping[str, Sequence[Compared]]) -> str:
    """Return a row of the table."""
    cells = []
    for metric in METRICS:
        pairs = found[metric]
        rho = spearmanr([p.predicted for p in pairs], [p.measured for p in pairs]).statistic
        error = statistics.median(p.error for p in pairs)
        within = "" if math.isinf(pairs[0].band) else f"{np.mean([p.error <= p.band for p in pairs]):5.2f}"
        width = "" if not within else f"{math.expm1(statistics.median(p.band for p in pairs)):6.0%}"
        cells.append(f"{rho:6.2f}{error:6.0%}{within:>6}{width:>6}")
    return f"{label:<34}" + " |".join(cells)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, nargs="*", default=[4, 8], help="lessons before the other rows")
    parser.add_argument("--within", action="store_true", help="predict each row with those before it, too")
    parser.add_argument("--hosts", nargs="+", help="names of hosts; without, all")
    arguments = parser.parse_args()
    print(f"{'':<34}" + " |".join(f"{metric:>24}" for metric in METRICS))
    print(
        f"{'host, lessons, other rows':<34}" + " |".join(f"{'rho':>6}{'error':>6}{'in':>6}{'band':>6}" for _ in METRICS)
    )
    for host in hosts():
        if arguments.hosts and host.name not in arguments.hosts:
            continue
        for count in arguments.trials:
            rest = host.rows[count:]
            if len(rest) < LEAST_ROWS:
                continue
            lessons: list[Lesson] = []
            for row in host.rows[:count]:
                lessons = with_lesson(lessons, row, linearise(row, {}))
            for known in (None, posterior(lessons)):
                label = f"{host.name}, {count if known else 'before'}, {len(rest)}"
                print(line(label, compare(rest, known)), flush=True)
        if arguments.within:
            found, moves = within(host.rows)
            print(line(f"{host.name}, before, {len(host.rows) - 1}", compare(host.rows[1:], None)))
            print(line(f"{host.name}, within ({moves} moves), {len(host.rows) - 1}", found), flush=True)


if __name__ == "__main__":
    main()
