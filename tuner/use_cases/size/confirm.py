"""Measure the cheapest shapes on this machine's GPUs, and correct the rest by what they held.

Each shape is one capacity search (`tuner.use_cases.capacity`) with the traffic of the predictions: the same arrivals
and lengths, runs as long, and the predicted rate as the first one. It ends with two rates, one that held and one that
missed; the lower one counts. Other shapes are multiplied by the geometric mean of measured / predicted. That corrects
what the predictions of all shapes have in common, and is a guess for cards of other hosts.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from search_spaces import HardwareProfile
from search_spaces.schema import VLLM
from tuner import gpu
from tuner.errors import SettingError
from tuner.settings.fleet import SizeSettings
from tuner.settings.study import StudySettings
from tuner.study.specification.find_model import find_model
from tuner.use_cases.capacity import CapacityObserver, CapacityResult, search_capacity
from tuner.use_cases.engines import chosen_engine
from tuner.use_cases.size.rate import timed
from tuner.use_cases.size.sizing import Origin, Sized, Sizing, compared, ordered, with_rate
from tuner.workloads.presets import load_preset

TRAFFIC_FILE = "traffic.yaml"
"""What one server gets, beside the logs of its search."""


def check_machine(settings: SizeSettings) -> None:
    """Check, before anything is predicted, that this machine can measure a shape.

    Raises:
        UserError: if it has no GPU of the compared cards, no vLLM, or not the model.
    """
    here = _profiles()
    if not {each.key for each in here} & {card.key for card in compared(settings)}:
        raise _unfit(settings.confirm, here)
    chosen_engine(replace(settings, engine=VLLM, gpu=None, vllm_version=None, workers=1))
    find_model(settings.model or load_preset(settings.preset).model, settings.tokenizer)


def confirmable(sizing: Sizing) -> list[Sized]:
    """Return the cheapest shapes that this machine's GPUs can serve, at most as many as are to be confirmed.

    Raises:
        SettingError: if there is none.
    """
    here = _profiles()
    keys = [each.key for each in here]
    shapes = [
        each
        for each in sizing.shapes
        if each.fleet is not None and keys.count(each.card.key) >= each.prediction.shape.gpus
    ]
    if not shapes:
        raise _unfit(sizing.settings.confirm, here)
    return shapes[: sizing.settings.confirm]


def _profiles() -> list[HardwareProfile]:
    """Return the profile of each GPU of this machine."""
    found = (gpu.hardware_profile(device.index) for device in gpu.devices())
    return [profile for profile in found if profile is not None]


def _unfit(count: int, here: Sequence[HardwareProfile]) -> SettingError:
    names = ", ".join(dict.fromkeys(profile.name for profile in here)) or "no GPU"
    rule = f"this machine has {names}, and no shape of the compared cards runs on it"
    return SettingError("confirm", count, rule, "give its card by {gpu}, or leave it out")


def confirm(
    sizing: Sizing,
    chosen: Iterable[Sized],
    folder: Path,
    observer: CapacityObserver,
    stop: threading.Event,
    permit: Callable[[StudySettings], None] = lambda settings: None,
) -> Sizing:
    """Return the sizing with the measured rates of chosen shapes, and the others corrected by them.

    Args:
        sizing: predicted.
        chosen: of its shapes.
        folder: of the logs.
        observer: of each search.
        stop: ends the search that runs.
        permit: raises a `UserError` for a server that may not be started.

    Raises:
        UserError: for a setting that cannot work.
    """
    measured: dict[str, Sized] = {}
    for each in chosen:
        if not stop.is_set():
            settings = _settings(sizing, each, folder / each.name.replace(" ", "-"))
            permit(settings)
            measured[each.name] = _with_measurement(sizing, each, search_capacity(settings, observer, stop))
    return corrected(sizing, measured)


def _settings(sizing: Sizing, shape: Sized, folder: Path) -> StudySettings:
    """Return the settings of a shape's capacity search, and write its traffic."""
    found = shape.prediction
    assert found.held is not None  # `confirmable` chose it
    folder.mkdir(parents=True, exist_ok=True)
    load = timed(sizing.asked.load, found.held.rate, found.residence_s)
    file = folder / TRAFFIC_FILE
    file.write_text(json.dumps(load.model_dump(mode="json", exclude_none=True), indent=1), encoding="utf-8")
    given = sizing.settings
    return replace(
        given,
        study="capacity",
        objective=("capacity",),
        engine=VLLM,
        model=given.model or sizing.model.name,
        workload=(file,),
        rate=None,
        slo=tuple(str(slo) for slo in sizing.slos),
        env={**given.env, **found.environment},
        server_arguments=(*given.server_arguments, *found.arguments),
        gpus_per_trial=found.shape.gpus,
        vllm_version=None,
        gpu=None,
        output=folder,
    )


def _with_measurement(sizing: Sizing, shape: Sized, result: CapacityResult) -> Sized:
    """Return a shape with the rate that was measured; without one, with the reason."""
    outcome, held = result.outcome, shape.prediction.held
    assert held is not None
    if outcome.failure is not None:
        return replace(
            shape, note=f"not measured: {outcome.failure.kind}: {outcome.failure.message}; logs: {result.folder}"
        )
    rate = outcome.metric("capacity")
    if rate is None:
        note = f"measured: every rate that was tried missed an SLO; rates: {result.folder}"
        return replace(shape, rate=None, origin=Origin.MEASURED, fleet=None, pessimistic=None, note=note)
    found = with_rate(sizing, shape, Origin.MEASURED, rate / held.rate)
    above = min((each for each in result.missed if each > rate), default=None)
    end = "missed at no rate" if above is None else f"missed at {above:.4g}"
    return replace(
        found, note=f"held {rate:.4g} requests/s and {end}, predicted {held.rate:.4g}; rates: {result.folder}"
    )


def corrected(sizing: Sizing, measured: dict[str, Sized]) -> Sizing:
    """Return the sizing with measured shapes, and the others multiplied by their mean ratio."""
    ratios = [
        each.rate / each.prediction.held.rate
        for each in measured.values()
        if each.origin is Origin.MEASURED and each.rate is not None and each.prediction.held is not None
    ]
    if not ratios:
        return replace(sizing, shapes=ordered([measured.get(each.name, each) for each in sizing.shapes]))
    ratio = math.exp(fmean(math.log(each) for each in ratios))
    shapes = [
        measured[each.name]
        if each.name in measured and measured[each.name].origin is Origin.MEASURED
        else with_rate(sizing, measured.get(each.name, each), Origin.CORRECTED, ratio)
        for each in sizing.shapes
    ]
    return replace(sizing, shapes=ordered(shapes), ratio=ratio)
