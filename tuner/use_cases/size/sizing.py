"""The use case of `tuner size`: for each card and shape, the rate of one server, the servers of a fleet, and its cost.

Every number is predicted, until `tuner.use_cases.size.confirm` measures some. A card's shapes are predicted in turn,
from few GPUs to many. They end where larger servers would only cost more: where the fewest possible servers hold the
peak, or a GPU holds less than `LEAST_SHARE` of what one of the card's best shape does. Cards are predicted side by
side, in a process each.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby

from search_spaces import HardwareProfile, Price
from search_spaces.render import gpus_of
from search_spaces.schema import VLLM
from tuner.engines.command_line import sampling_arguments
from tuner.engines.simulator.client import refuse_unmodelled
from tuner.engines.simulator.prediction import Platform
from tuner.engines.vllm.resident.helper import die_with_parent
from tuner.errors import SettingError
from tuner.gpu import usable_cores
from tuner.scoring.goals import Slo
from tuner.settings.fleet import SizeSettings
from tuner.specs import ModelRef
from tuner.study.specification.find_model import find_simulated_model
from tuner.study.specification.resolve_workload import check_price, find_goals, find_price, find_workload
from tuner.use_cases.engines import find_card, find_version
from tuner.use_cases.size.demand import Demand, demand_of
from tuner.use_cases.size.fleet import Fleet, fleet_of, front
from tuner.use_cases.size.predict import LATENCIES, Asked, Prediction, latencies_at, predict
from tuner.use_cases.size.shapes import shapes_of
from tuner.workloads.presets import load_preset
from tuner.workloads.schedule import file_notes
from tuner.workloads.spec import Suite
from tuner.workloads.traffic import Traffic

CARDS = ("l4", "l40s", "h100", "h200")
"""Cards that are compared where none is given."""

LEAST_SHARE = 2 / 3
"""A GPU of a shape that holds less than this share of the card's best one ends the search over larger shapes."""


class Origin(StrEnum):
    """Where the rate of a server comes from."""

    PREDICTED = "predicted"
    CORRECTED = "corrected"
    """Predicted, and multiplied by what measured shapes held relative to their predictions."""
    MEASURED = "measured"


@dataclass(frozen=True)
class Sized:
    """A server of one card and shape, and the fleet of such servers.

    Attributes:
        prediction: of one server.
        price: of a GPU-hour; None: unknown.
        rate: requests/s that one server holds; None for none.
        origin: of the rate.
        fleet: None without a rate.
        pessimistic: the fleet at that end of the error band; None: there is no such rate, or the rate is measured.
        latencies: predicted, of a server with its part of the peak.
        on_front: no other shape has lower cost and latencies.
        note: why a measurement gave no rate, or between which rates it ended.
    """

    prediction: Prediction
    price: Price | None
    rate: float | None = None
    origin: Origin = Origin.PREDICTED
    fleet: Fleet | None = None
    pessimistic: Fleet | None = None
    latencies: Mapping[str, float | None] = field(default_factory=dict)
    on_front: bool = False
    note: str = ""

    @property
    def card(self) -> HardwareProfile:
        """The card of its GPUs."""
        return self.prediction.platform.card

    @property
    def name(self) -> str:
        """Card and shape."""
        return f"{self.card.key} {self.prediction.shape.name}"


@dataclass(frozen=True)
class Sizing:
    """The answer: shapes in the order of their cost, those without one last.

    Attributes:
        settings: what was asked.
        asked: of every server.
        model: its name, and the place of its files.
        demand: on all servers together.
        shapes: every card and shape.
        notes: what is left out or assumed, a line each.
        seconds: that the predictions took.
        ratio: measured by predicted rates, the geometric mean; None without a measurement.
    """

    settings: SizeSettings
    asked: Asked
    model: ModelRef
    demand: Demand
    shapes: tuple[Sized, ...]
    notes: tuple[str, ...]
    seconds: float
    ratio: float | None = None

    @property
    def slos(self) -> tuple[Slo, ...]:
        """The bounds that a rate has to keep."""
        return self.asked.goals.slos

    @property
    def cheapest(self) -> Sized | None:
        """The first shape with a fleet; None if none holds a rate."""
        return next((each for each in self.shapes if each.fleet is not None), None)


def size(settings: SizeSettings) -> Sizing:
    """Predict servers and costs.

    Raises:
        UserError: for a setting that cannot work.
    """
    begun = time.perf_counter()
    sizing, works = _planned(settings)
    shapes = [each for found in _side_by_side(works) for each in found]
    return replace(sizing, shapes=ordered(shapes), seconds=time.perf_counter() - begun)


def check_size(settings: SizeSettings) -> None:
    """Check what can be known before anything is predicted.

    Raises:
        UserError: for a setting that cannot work.
    """
    _planned(settings)


def _planned(settings: SizeSettings) -> tuple[Sizing, list[_Work]]:
    """Return the sizing without its shapes, and what predicts those of each card."""
    cards = compared(settings)
    prices = _prices(settings, cards)
    preset = load_preset(settings.preset)
    load = find_workload(preset, settings)
    demand, one = demand_of(load if not isinstance(load, Suite) else _refuse_suite(settings))
    for each in one.sent_classes.values():
        refuse_unmodelled(each)
    goals = find_goals(preset, load, settings, own=not settings.files)
    model, shape = find_simulated_model(settings.model or preset.model, settings.tokenizer)
    words = (*sampling_arguments(one.temperature, VLLM), *settings.server_arguments)
    if gpus_of(words) > 1:
        rule = "the shapes of servers differ in how many GPUs share the model"
        raise SettingError("server_arguments", None, rule, "leave out the flags of parallelism")
    asked = Asked(shape, one, goals, words, dict(settings.env), settings.keep_answers)
    sizing = Sizing(settings, asked, model, demand, (), (*file_notes(load), *_notes(load, goals.slos)), 0.0)
    return sizing, [_Work(sizing, card, price) for card, price in zip(cards, prices, strict=True)]


def compared(settings: SizeSettings) -> list[HardwareProfile]:
    """Return the cards that are compared.

    Raises:
        SettingError: for one that is not known, or no GPU.
    """
    return [find_card(name) for name in dict.fromkeys(settings.card or CARDS)]


def _refuse_suite(settings: SizeSettings) -> Traffic:
    raise SettingError("workload", list(settings.files), "one load is sized at a time", "give one traffic file")


def _prices(settings: SizeSettings, cards: Sequence[HardwareProfile]) -> list[Price | None]:
    """Return the price of each card: the given one, else the list price."""
    known = [card.key for card in cards]
    for key, value in settings.card_price.items():
        check_price(value)
        if key not in known:
            raise SettingError("price", f"{key}={value:g}", f"no card of this name is compared: {', '.join(known)}")
    return [find_price(settings.card_price.get(card.key), card) for card in cards]


def _notes(load: object, slos: Sequence[Slo]) -> list[str]:
    """Return what is left out of the workload, and what the SLOs leave open."""
    notes = []
    if isinstance(load, Traffic) and load.max_in_flight is not None:
        notes.append(
            f"max_in_flight {load.max_in_flight} is left out: it limits the client, whatever the number of servers"
        )
    for name, bounds in load.slo.items() if isinstance(load, Traffic) else ():
        single = [key for key in bounds if key in _SINGLE]
        if single and not bounds.keys() & {"goodput_share", "session_goodput_share"}:
            rule = f"{name}: {', '.join(single)} of single requests bounds no rate without goodput_share"
            notes.append(f"{rule}; add a percentile (p95_{single[0]}) or goodput_share to `slo`")
    if not any(slo.metric.endswith("_ms") for slo in slos) and not (isinstance(load, Traffic) and load.slo):
        notes.append("no SLO bounds a latency: a server holds what it completes")
    return notes


_SINGLE = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")
"""Bounds on single requests."""


@dataclass(frozen=True)
class _Work:
    """The shapes of one card."""

    sizing: Sizing
    card: HardwareProfile
    price: Price | None

    def run(self) -> list[Sized]:
        """Predict the shapes in turn."""
        settings, asked = self.sizing.settings, self.sizing.asked
        platform = Platform.simulated(self.card, find_version(settings.vllm_version, self.card))
        found: list[Sized] = []
        first = self.sizing.demand.peak
        for gpus, shapes in groupby(shapes_of(asked.model, settings.most_gpus), lambda shape: shape.gpus):
            for shape in shapes:
                held = predict(asked, platform, shape, first)
                sized = with_rate(self.sizing, Sized(held, self.price), Origin.PREDICTED)
                first = first if sized.rate is None else sized.rate
                found.append(sized)
            if self._is_enough(found, gpus):
                break
        return found

    def _is_enough(self, found: Sequence[Sized], gpus: int) -> bool:
        """Return whether servers of more GPUs would only cost more; see the module's docstring."""
        own = [each for each in found if each.prediction.shape.gpus == gpus]
        fewest = 1 + self.sizing.settings.spares
        if any(each.fleet is not None and each.fleet.servers == fewest for each in own):
            return True
        best, here = (
            max((each.rate / each.prediction.shape.gpus for each in group if each.rate is not None), default=None)
            for group in (found, own)
        )
        return best is not None and here is not None and here < LEAST_SHARE * best


def _side_by_side(works: Sequence[_Work]) -> list[list[Sized]]:
    """Return the shapes of each card. The processes end with this one, also if it is killed."""
    processes = min(usable_cores(), len(works))
    if processes == 1:
        return [work.run() for work in works]
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, fork, initializer=die_with_parent, initargs=(os.getpid(),)) as pool:
        return list(pool.map(_Work.run, works))


def with_rate(sizing: Sizing, sized: Sized, origin: Origin, factor: float = 1.0) -> Sized:
    """Return a shape with the fleet for its predicted rate, or for a multiple of it that measurements tell."""
    found = sized.prediction
    if found.held is None:
        return replace(sized, rate=None, fleet=None)
    price, gpus = None if sized.price is None else sized.price.per_gpu_hour, found.shape.gpus
    rate = found.held.rate * factor
    fleet = fleet_of(sizing.demand, rate, gpus, price, sizing.settings)
    least = None
    if origin is not Origin.MEASURED and found.pessimistic is not None:
        least = fleet_of(sizing.demand, found.pessimistic * factor, gpus, price, sizing.settings)
    latencies = latencies_at(sizing.asked, found, fleet.load)
    return replace(sized, rate=rate, origin=origin, fleet=fleet, pessimistic=least, latencies=latencies)


def ordered(shapes: Sequence[Sized]) -> tuple[Sized, ...]:
    """Return shapes by cost, without a price by GPUs, without a rate last; with marks for those on the front."""
    points = [(_cost(each), *(each.latencies.get(name) for name in LATENCIES[:2])) for each in shapes]
    marked = [replace(each, on_front=mark) for each, mark in zip(shapes, front(points), strict=True)]

    def place(each: Sized) -> tuple[bool, bool, float]:
        cost = _cost(each)
        gpus = 0 if each.fleet is None else each.fleet.gpus
        return each.fleet is None, cost is None, float(gpus) if cost is None else cost

    return tuple(sorted(marked, key=place))


def _cost(each: Sized) -> float | None:
    return None if each.fleet is None else each.fleet.cost_per_month
