"""Presets, previews of studies, and predictions of single configurations: nothing here is started or stored."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import WithJsonSchema

from dashboards.plots import traffic
from records.metrics import METRICS, registered
from search_spaces import known_hardware, known_models, list_price
from tuner.errors import SettingError
from tuner.export.formats.registry import names
from tuner.observers.host_learning import learned_in
from tuner.service.asked.check import check_traffic
from tuner.service.asked.contents import read_only
from tuner.service.asked.settings import FILES, described, schema
from tuner.service.http.access import Caller, Known, User
from tuner.service.http.context import Context, ServiceContext
from tuner.service.http.models import Body, NewStudy
from tuner.service.http.problems import Problem
from tuner.service.http.studies import kind_of, read_asked
from tuner.service.queue.rules import SIMULATED
from tuner.settings.declared import settings_of
from tuner.settings.fleet import SizeSettings
from tuner.settings.study import StudySettings, WorkloadSettings
from tuner.use_cases.preview import preset_document, preview, preview_document, shown_metrics, simulation_document
from tuner.use_cases.report.page import CAPTIONS
from tuner.use_cases.simulate import Simulation, simulate
from tuner.workloads.presets import load_preset, preset_names

router = APIRouter(prefix="/v1", tags=["predictions"])

AT_ONCE = 2
"""Predictions that run at once in a process; each keeps a core busy."""

PATIENCE_S = 20.0
"""Seconds that a prediction waits for its turn."""

MOST_PROMPTS = 20_000
"""Requests of a predicted workload."""

PREDICTED = frozenset(
    {
        *settings_of(WorkloadSettings),
        "preset",
        "model",
        "gpu",
        "vllm_version",
        "server_arguments",
        "env",
        "price",
        "seed",
    }
    | {FILES}
)
"""Settings that a prediction depends on."""

_turns = threading.BoundedSemaphore(AT_ONCE)


class WhatIf(Body):
    """A configuration to predict."""

    settings: Annotated[dict[str, Any], WithJsonSchema(schema(PREDICTED))]


@router.get("/presets")
def presets(who: Known) -> list[dict[str, Any]]:
    """Return the presets: workload, model, card, objectives and SLOs under one name."""
    return [preset_document(load_preset(name)) for name in preset_names()]


@router.get("/catalogue")
def catalogue(who: Known, context: Context) -> dict[str, Any]:
    """Return what can be chosen: settings, devices, webhooks, cards and models to simulate, metrics, charts, drift."""
    cards = [(each, list_price(each)) for each in known_hardware().values() if each.vendor == "nvidia"]
    measured = {**METRICS, **registered()}
    return {
        "kinds": {kind: len(names) for kind, names in context.devices.items()},
        "cards": [
            {"key": card.key, "name": card.name, "price": None if price is None else price.per_gpu_hour}
            for card, price in cards
        ],
        "models": sorted(known_models()),
        "metrics": {name: {"unit": each.unit, "direction": each.direction.value} for name, each in measured.items()},
        "charts": list(CAPTIONS),
        "formats": list(names()),
        "webhooks": sorted(context.webhooks.by_name),
        "watches": bool(context.deployed.allowed),
        "settings": [{**each, "predicted": each["name"] in PREDICTED} for each in described()],
    }


@router.post("/studies:preview")
def preview_study(body: NewStudy, who: User, context: Context) -> dict[str, Any]:
    """Return what a study would search, what is ruled out and why, and its predicted defaults."""
    with _asked(body.settings, who, context, body.id) as settings:
        if isinstance(settings, SizeSettings):
            raise SettingError("size", True, "a preview is of a study that tunes", "submit it; it takes a minute")
        kind = kind_of(body, settings, context)
        with _turn():
            return {"kind": kind, **preview_document(preview(settings, None if kind == SIMULATED else kind))}


@router.post("/simulate")
def simulate_configuration(body: WhatIf, who: Known, context: Context) -> dict[str, Any]:
    """Predict one configuration on this host: metrics with their error bands, and its place on the card's roofline."""
    unknown = next((name for name in body.settings if name not in PREDICTED), None)
    if unknown is not None:
        rule = "a prediction does not depend on this setting"
        raise SettingError(unknown, None, f"{unknown}: {rule}", "leave it out")
    with _asked(body.settings, who, context, None) as settings, _turn():
        if "seed" not in body.settings:
            settings = replace(settings, seed=load_preset(settings.preset).workload.seed)
        return _prediction(simulate(settings, learned=partial(learned_in, context.store, None)))


@contextmanager
def _asked(given: Mapping[str, Any], who: Caller, context: ServiceContext, id: str | None) -> Iterator[StudySettings]:
    """Yield checked settings, whose contents are files for as long as the context is open."""
    settings, files = read_asked(given, id, who, context)
    if (settings.num_prompts or 0) > MOST_PROMPTS:
        rule = f"at most {MOST_PROMPTS:,} requests are predicted"
        raise SettingError("num_prompts", settings.num_prompts, rule, "lower it")
    with read_only(settings, files) as own:
        check_traffic(own, MOST_PROMPTS)
        yield own


@contextmanager
def _turn() -> Iterator[None]:
    """Wait until few enough predictions run.

    Raises:
        Problem: 503 after `PATIENCE_S`.
    """
    if not _turns.acquire(timeout=PATIENCE_S):
        raise Problem(503, f"{AT_ONCE} predictions run already; try again soon", headers={"Retry-After": "5"})
    try:
        yield
    finally:
        _turns.release()


def _prediction(found: Simulation) -> dict[str, Any]:
    roof, card, name = found.roofline, found.card, "this configuration"
    point = {name: (roof.intensity, roof.flops)}
    bandwidth = (card.bandwidth_gbs or 0.0) * 1e9
    figure = traffic.roofline_figure(card.tflops["float16"] * 1e12, bandwidth, point, {}) if bandwidth else None
    steps = traffic.time_shares({name: found.run.time_shares})
    return {
        **simulation_document(found),
        "shown": shown_metrics(),
        "figures": {
            "roofline": None if figure is None else json.loads(figure.to_json()),
            "steps": None if steps is None else json.loads(steps.to_json()),
        },
    }
