"""One run of a submission that finds servers for a load: predicted, and measured on the devices that it was granted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any

from dashboards.report.document import document as page_document
from records.trials import Phase
from storage.service.records import SubmissionState
from tuner.cancellation import Wishes
from tuner.engines.base import EngineInfo
from tuner.service.asked.allowed import check_variable, check_words
from tuner.service.asked.rules import ServerRules
from tuner.service.driver.events import EventObserver
from tuner.service.driver.job import Ending, Job
from tuner.settings.fleet import SizeSettings
from tuner.settings.study import StudySettings
from tuner.use_cases.size.confirm import check_machine, confirm, confirmable
from tuner.use_cases.size.html import page_of
from tuner.use_cases.size.page import document, verdict
from tuner.use_cases.size.sizing import Sizing, size

ANSWER, PAGE = "answer", "page"
"""What is stored: the document of `tuner size --json`, and its report as JSON."""


def run_size(
    settings: SizeSettings,
    job: Job,
    observer: EventObserver,
    keep: Callable[[Mapping[str, Any]], None],
    wishes: Wishes,
) -> Ending:
    """Find servers for a load, keep the answer, and return how the run ended.

    After a request to stop or to yield, no further shape is measured; the answer has what was measured until then.

    Raises:
        UserError: for a setting that cannot work, or a server that this service does not allow.
    """
    settings = replace(settings, vllm=job.vllm, output=job.folder)
    if settings.confirm:
        check_machine(settings)
    observer.note("predicts each card and shape")
    sizing = size(settings)
    if settings.confirm and not wishes.stop.is_set():
        sizing = _confirmed(sizing, job, observer, wishes)
    if wishes.stop.is_set():
        return Ending(SubmissionState.QUEUED, "it gave its devices back, and begins again when it gets some")
    keep({ANSWER: document(sizing), PAGE: page_document(page_of(sizing))})
    cut = settings.confirm and wishes.conclude.is_set()
    return Ending(SubmissionState.STOPPED if cut else SubmissionState.DONE, verdict(sizing))


def _confirmed(sizing: Sizing, job: Job, observer: EventObserver, wishes: Wishes) -> Sizing:
    chosen = confirmable(sizing)
    observer.note(f"measures {', '.join(each.name for each in chosen)}")
    going_on = takewhile(lambda _: not wishes.ends_search(), chosen)
    folder, searching = job.folder / "size", _Searching(observer)
    return confirm(sizing, going_on, folder, searching, wishes.stop, lambda settings: _permit(settings, job.rules))


def _permit(settings: StudySettings, rules: ServerRules) -> None:
    """Refuse a server whose command has a flag or a variable that this service does not allow."""
    check_words("server_arguments", settings.server_arguments, rules.flags)
    for name, value in settings.env.items():
        check_variable("env", name, value, rules.variables)


class _Searching:
    """Notes the searches for a rate; a `CapacityObserver`."""

    def __init__(self, observer: EventObserver) -> None:
        self._observer = observer

    def opened(self, engine: EngineInfo, hardware: str) -> None:
        self._observer.note(f"searches the rate of a server of {engine.name} {engine.version} on {hardware}")

    def phase(self, phase: Phase) -> None:
        """Ignore phases: each rate that is tried has one."""
