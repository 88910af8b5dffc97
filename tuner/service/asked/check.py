"""Check a submission as far as possible before it is queued, so that a mistake is answered at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from search_spaces.schema import VLLM
from tuner.engines.kind import Feature
from tuner.engines.kinds import kind_of
from tuner.errors import SettingError
from tuner.service.asked.allowed import check_space
from tuner.service.asked.contents import check_contents, read_only
from tuner.service.asked.rules import ServerRules, check_rules
from tuner.settings.fleet import SizeSettings
from tuner.settings.study import StudySettings
from tuner.study.specification.plan import declared_space, plan_study
from tuner.use_cases.engines import refuse_simulation_options, simulated_engine
from tuner.use_cases.size.sizing import check_size, compared
from tuner.workloads.presets import load_preset
from tuner.workloads.schedule import due_times
from tuner.workloads.traffic import TraceArrivals, Traffic, load_traffic

MOST_REQUESTS = 1_000_000
MOST_CLASSES = 100
MOST_DOCUMENTS = 1_000_000
"""Of all classes of a traffic file."""

_RATES = ("rate", "start_rate", "end_rate")


def check_asked(settings: StudySettings, files: Mapping[str, str], rules: ServerRules) -> None:
    """Refuse settings that this server does not allow, too much traffic, and names of files beyond the submission's.

    Raises:
        UserError: with the setting and the rule.
    """
    check_rules(settings, rules)
    check_contents(settings, files)
    with read_only(settings, files) as own:
        check_traffic(own)
        space = declared_space(own.space, load_preset(own.preset), VLLM, on_cpu=False)
        check_space(space.specs, rules.flags, rules.variables)


def check_plan(settings: StudySettings, files: Mapping[str, str], kind: str, *, simulated: bool) -> None:
    """Refuse settings that cannot work, of those that `check_asked` accepts.

    The model of a study that measures is left to its driver: only its machine knows whether it has it.

    Raises:
        UserError: with the setting and the rule.
    """
    if isinstance(settings, SizeSettings):
        with read_only(settings, files) as own:
            _check_size(own, kind)
        return
    if not kind_of(settings.engine).can(Feature.PREDICTED):
        rule = f"a service runs vLLM and simulations, and {settings.engine} only `tuner optimize`"
        raise SettingError("engine", settings.engine, rule, "give vllm, simulated or auto")
    if simulated:
        simulated_engine(settings.gpu, settings.vllm_version, settings.preset, None)
    else:
        refuse_simulation_options(settings.gpu, settings.vllm_version)
    if not simulated and settings.model is not None:
        return
    with read_only(settings, files) as own:
        plan_study(own, on_cpu=kind == "cpu", simulated=True, card=None if simulated else kind)


def _check_size(settings: SizeSettings, kind: str) -> None:
    """Refuse servers for a load that cannot be found, and a card to measure that this server does not have."""
    if settings.confirm and kind not in {card.key for card in compared(settings)}:
        raise SettingError("confirm", settings.confirm, f"{kind} is not among the cards", "give its card by {card}")
    check_size(settings)


def check_traffic(settings: StudySettings, most: int = MOST_REQUESTS) -> None:
    """Refuse traffic files with too many requests, classes or documents, before a schedule of them is made.

    The workloads of the settings are paths of files, each of at most `most` requests.

    Raises:
        UserError: with the number and the limit, or if a file is not valid.
    """
    for path in settings.workload:
        traffic = load_traffic(Path(path))
        documents = sum(each.prefix.documents for each in traffic.classes.values() if each.prefix is not None)
        for what, number, limit in (
            ("requests", _requests(traffic, settings), most),
            ("classes", len(traffic.classes), MOST_CLASSES),
            ("documents", documents, MOST_DOCUMENTS),
        ):
            if number > limit:
                rule = f"the traffic has {number:,.0f} {what}, and {limit:,} are the most of this server"
                raise SettingError("workload", None, rule, "lower them")


def _requests(traffic: Traffic, settings: StudySettings) -> float:
    """Return the requests of a run, by the highest rate where the file has a duration only."""
    given = settings.num_prompts or traffic.requests
    if given is None and isinstance(traffic.arrivals, TraceArrivals):
        given = math.ceil(len(due_times(traffic)) * traffic.requests_per_arrival)
    arrivals = traffic.arrivals.model_dump()
    rates = [float(arrivals[name]) * traffic.requests_per_arrival for name in _RATES if arrivals.get(name)]
    by_time = max([settings.rate or 0.0, *rates]) * (math.inf if traffic.duration_s is None else traffic.duration_s)
    return max(given or by_time, traffic.warmup_requests)
