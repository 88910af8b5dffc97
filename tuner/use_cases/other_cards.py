"""Predict what a study's winner and its defaults would give on other cards, with the cost of their tokens."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from records.measured import exported_of
from records.trials import Provenance, StudyRecord, TrialKind, TrialOutcome, TrialRecord
from search_spaces import HardwareProfile, Price, SpaceError, hardware_named, known_hardware, list_price
from search_spaces.render import gpus_of
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.flags import DEFAULT_VERSION, default_version
from tuner.engines.simulator.precision import ConfigRefused
from tuner.engines.simulator.prediction import Platform, build_server, client_metrics, run_workload
from tuner.engines.simulator.roofline import MeasuredPoint, Roofline, measured_point, roofline_of
from tuner.engines.simulator.serve_config import find_shape
from tuner.scoring.cost import token_costs
from tuner.scoring.goals import parse_slo
from tuner.specs import Limits
from tuner.study.simulator_prior import BROKEN, REFUSED
from tuner.workloads.spec import SingleWorkload, Suite, read_workload

CARDS = ("t4", "l4", "a10g", "a100", "l40s", "h100", "h200")
"""Keys of the cards that are compared, in the order in which they came to clouds within each class."""

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CardFigures:
    """What one configuration is predicted to give on a card; metrics are None where it fails, or costs without a price.

    `misses` are SLOs of the study that it is predicted to miss; those that nothing predicts, such as quality, count as
    met. `failure` says why the server does not start or completes no request. `roofline` is the place of the run on the
    card's roofline, and `time_shares` has the share of each part of an engine step in the time of all steps.
    """

    output_throughput: float | None = None
    p99_tpot_ms: float | None = None
    p99_ttft_ms: float | None = None
    cost_per_million_output_tokens: float | None = None
    cost_per_million_total_tokens: float | None = None
    misses: tuple[str, ...] = ()
    failure: str | None = None
    roofline: Roofline | None = None
    time_shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CardPrediction:
    """The predictions for one card; nothing here is measured.

    `is_own`: the study ran, or was simulated, on this card. A T4 needs an earlier `vllm_version` than other cards.
    `price` is of a GPU-hour: the study's on its own card, else the list price; None: unknown. `defaults` is the engine
    without flags, None if the study has no such trial; `winner` the exported configuration, None where that is the
    defaults.
    """

    key: str
    name: str
    is_own: bool
    vllm_version: str
    price: Price | None
    defaults: CardFigures | None
    winner: CardFigures | None
    provenance: Provenance = Provenance.SIMULATED


def other_cards(
    study: StudyRecord, records: Sequence[TrialRecord], keys: Sequence[str] = CARDS
) -> tuple[CardPrediction, ...]:
    """Return the predictions of a stored study for cards, its own one among them.

    Empty for several workloads and for studies on a CPU, which the simulator does not predict.
    """
    workload = read_workload(study.premise["workload"])
    own = own_card(study)
    if isinstance(workload, Suite) or (own is not None and own.vendor == "cpu"):
        return ()
    exported = exported_of(study.conclusion)
    searched = {record.number: record for record in records if not record.round and record.outcome is not None}
    defaults = next((each for each in searched.values() if each.kind is TrialKind.BASELINE), None)
    winner = None if exported is None else searched.get(exported)
    cards = [known_hardware()[key] for key in keys]
    return tuple(
        _on_card(study, workload, card, own, defaults, None if winner is defaults else winner) for card in cards
    )


def _on_card(
    study: StudyRecord,
    workload: SingleWorkload,
    card: HardwareProfile,
    own: HardwareProfile | None,
    defaults: TrialRecord | None,
    winner: TrialRecord | None,
) -> CardPrediction:
    """Return the predictions for one card."""
    is_own = own is not None and own.key == card.key
    price = Price.from_dict(study.facts.get("price")) if is_own else list_price(card)
    version = _version(study, card, own)
    platform = Platform.simulated(card, version)
    plain, best = (
        None if each is None else _figures(study, workload, platform, price, each) for each in (defaults, winner)
    )
    return CardPrediction(card.key, card.name, is_own, version, price, plain, best)


def _figures(
    study: StudyRecord, workload: SingleWorkload, platform: Platform, price: Price | None, trial: TrialRecord
) -> CardFigures:
    """Return what the command of a trial is predicted to give on a platform."""
    outcome = trial.outcome
    assert outcome is not None
    try:
        server = _server(platform, outcome)
        run = run_workload(server, workload, workload.repeat_seed(0), Limits().benchmark_s)
    except REFUSED as error:
        return CardFigures(failure=str(error))
    except BROKEN as error:  # a table is worth no failed report
        _log.warning(
            "no prediction on %s, the simulator failed: %s: %s", platform.card.key, type(error).__name__, error
        )
        return CardFigures(failure="the simulator failed")
    metrics = client_metrics(workload, run) if run.completed else None
    if metrics is None:
        return CardFigures(failure="the requests do not end within the time limit of a benchmark")
    used = gpus_of(outcome.argv)
    metrics |= token_costs(metrics, None if price is None else price.per_gpu_hour * used)
    slos = [parse_slo(text) for text in study.premise["slos"]]
    return CardFigures(
        output_throughput=metrics.get("output_throughput"),
        p99_tpot_ms=metrics.get("p99_tpot_ms"),
        p99_ttft_ms=metrics.get("p99_ttft_ms"),
        cost_per_million_output_tokens=metrics.get("cost_per_million_output_tokens"),
        cost_per_million_total_tokens=metrics.get("cost_per_million_total_tokens"),
        misses=tuple(str(slo) for slo in slos if (value := metrics.get(slo.metric)) is not None and not slo.met(value)),
        roofline=roofline_of(run),
        time_shares=run.time_shares,
    )


def _server(platform: Platform, outcome: TrialOutcome) -> ConfiguredServer:
    """Return the server of a trial's command on a platform.

    Raises:
        ConfigRefused: if there is no such command, the model's shape is not known, or vLLM refuses the configuration.
        StartFailed: if the server ends with an error.
    """
    if outcome.served is None:
        raise ConfigRefused("the trial has no command of a server")
    model, arguments = outcome.served
    platform = replace(platform, gpus=gpus_of(arguments))
    return build_server(platform, arguments, outcome.environment, find_shape(model))


def measured_place(study: StudyRecord, outcome: TrialOutcome) -> MeasuredPoint:
    """Return the place of a measured outcome on the roofline of the study's card."""
    card = own_card(study)
    if card is None or card.bandwidth_gbs is None:
        return MeasuredPoint(lacking="the peak and the bandwidth of its device are not known")
    if isinstance(read_workload(study.premise["workload"]), Suite):
        return MeasuredPoint(lacking="it ran several workloads")
    try:
        return measured_point(_server(Platform.simulated(card, _version(study, card, card)), outcome), outcome)
    except REFUSED as error:
        return MeasuredPoint(lacking=str(error))


def own_card(study: StudyRecord) -> HardwareProfile | None:
    """Return the study's card; None if it is not a known one."""
    try:
        return hardware_named(str(study.facts.get("hardware", "")))
    except SpaceError:
        return None


def _version(study: StudyRecord, card: HardwareProfile, own: HardwareProfile | None) -> str:
    """Return the vLLM that is simulated: the study's where it runs on the card, else the card's default.

    Turing cards and later ones need different versions. A measured version may have a suffix, such as `0.25.1+cu130`.
    """
    stored = str(study.premise["engine"]["version"]).partition("+")[0]
    for_own = DEFAULT_VERSION if own is None else default_version(own)
    return stored if _VERSION.fullmatch(stored) and for_own == default_version(card) else default_version(card)
