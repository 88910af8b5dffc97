"""Studies: submit, list, read, change, delete, and the verbs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from search_spaces.schema import VLLM
from storage.service.errors import WrongState
from storage.service.records import ENDED, Request, Submission, SubmissionState
from storage.service.store import ServiceStore
from storage.service.submissions import DELETABLE
from tuner.client.files import new_id
from tuner.client.replies import StudyPage, SubmittedStudy
from tuner.errors import SettingError
from tuner.service.asked.check import check_asked, check_plan
from tuner.service.asked.contents import files_of
from tuner.service.asked.settings import read_settings
from tuner.service.http.access import Caller, Changeable, Known, Readable, User, check_source, log_action
from tuner.service.http.context import Context, ServiceContext
from tuner.service.http.models import NewStudy, NewWatch, StudyChange, study_of
from tuner.service.queue.rules import SIMULATED, WITHOUT_GPU
from tuner.service.scheduler.launcher import submission_folder
from tuner.service.watching.drift import promised, text_of
from tuner.settings.fleet import SizeSettings
from tuner.settings.study import StudySettings
from tuner.study.specification.plan import gpus_of_trial
from tuner.study.study_folder import study_lock
from tuner.use_cases.devices import refuse_nodes
from tuner.use_cases.places import data_folder


def delete_study(id: str, service: ServiceStore, url: str, folder: Path) -> None:
    """Delete an ended submission, its study in the tuner's and in Optuna's tables, and its files.

    The lock of the study is held meanwhile, so no driver runs it. Optuna's study comes first: the submission stays
    until everything else in the database is gone, so an interrupted deletion can be repeated.

    Raises:
        UnknownSubmission: if there is none of that id.
        WrongState: if it has not ended.
        StudyIsRunning: if a process runs the study.
    """
    from tuner.study.optuna_storage import delete_optuna_study

    with study_lock(url, id):
        found = service.submission(id)
        if found is not None and found.state not in ENDED:
            raise WrongState(id, found.state, DELETABLE)
        delete_optuna_study(url, id)
        service.delete(id)
        # Without an SQLite file, the driver's artifacts are in its own folder.
        for place in (folder, data_folder(url, folder) / "artifacts" / id):
            shutil.rmtree(place, ignore_errors=True)


router = APIRouter(prefix="/v1/studies", tags=["studies"])
MOST_WAITING = 200
"""Submissions of one owner that may wait."""


@router.post("", status_code=201, responses={200: {"model": SubmittedStudy}})
def submit(body: NewStudy, who: User, context: Context, response: Response) -> SubmittedStudy:
    """Submit a study; 200 instead of 201 if it was submitted before."""
    id = body.id or new_id()
    settings, files = read_asked(body.settings, id, who, context)
    kind = kind_of(body, settings, context)
    check_plan(settings, files, kind, simulated=kind == SIMULATED)
    _check_gpus(settings, body, kind)
    known = context.service.submission(id)
    of_command_line = known is None and not who.is_admin and context.store.study(id) is not None
    if of_command_line or (known is not None and not who.may_change(known.owner)):
        raise SettingError("id", id, "this id is taken", "choose another one")
    now, webhook = datetime.now(UTC), context.webhooks.chosen(body.webhook)
    whose = (id, who.owner, body.settings, kind)
    asked = Submission(*whose, body.gpus, body.priority, now, now, shared=body.shared, webhook=webhook)
    found, created = context.service.submit(asked, MOST_WAITING)
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/studies/{id}"
    log_action(context, who, "submit", id, "created" if created else "known")
    return _view(found, context)


def read_asked(
    given: Mapping[str, Any], id: str | None, who: Caller, context: ServiceContext
) -> tuple[StudySettings, dict[str, str]]:
    """Return settings that the caller may ask of this server, and the files that their contents name.

    Raises:
        UserError: with the setting and the rule.
        Problem: 404 for a study to learn from that the caller may not read.
    """
    settings, files = read_settings(given, id), files_of(given)
    check_asked(settings, files, context.rules)
    for source in settings.learn_from:
        check_source(source, who, context)
    return settings, files


def kind_of(body: NewStudy, settings: StudySettings, context: ServiceContext) -> str:
    """Return the kind of the devices. A card to simulate asks for a simulated one, as on the command line.

    Servers for a load need a GPU only where some are measured.

    Raises:
        SettingError: if the server has none of that kind, fewer than asked, or several kinds to choose from.
    """
    kinds, kind, engine = sorted(context.devices), body.kind, settings.engine
    if isinstance(settings, SizeSettings):
        engine = VLLM if settings.confirm else SIMULATED
    if kind is None and (engine == SIMULATED or (engine == "auto" and settings.gpu is not None)):
        kind = SIMULATED
    real = [each for each in kinds if each != SIMULATED]
    if kind is None and len(real) == 1:
        kind = real[0]
    if kind is None or kind not in context.devices:
        raise SettingError("kind", kind, f"this server has devices of the kinds {', '.join(kinds)}", "give one")
    if (engine == SIMULATED) != (kind == SIMULATED) and engine != "auto":
        raise SettingError("kind", kind, f"the engine {engine!r} does not run there", "leave the kind out")
    if body.gpus > len(context.devices[kind]):
        raise SettingError("gpus", body.gpus, f"this server has {len(context.devices[kind])} of {kind}", "lower it")
    return kind


def _check_gpus(settings: StudySettings, body: NewStudy, kind: str) -> None:
    """Refuse trials that need more GPUs than the study asks for."""
    refuse_nodes(settings.nodes_per_trial)
    needed = gpus_of_trial(settings)
    if kind not in WITHOUT_GPU and needed > body.gpus:
        rule = f"the study asks for {body.gpus} GPU{'' if body.gpus == 1 else 's'}"
        raise SettingError("gpus_per_trial", needed, rule, f"give {{gpus}} {needed} or more")


@router.get("")
def studies(
    who: Known,
    context: Context,
    owner: Annotated[str | None, Query(max_length=100)] = None,
    state: Annotated[list[SubmissionState] | None, Query()] = None,
    text: Annotated[str | None, Query(max_length=100)] = None,
    after: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> StudyPage:
    """Return the studies that the caller may read, the newest first, without their settings."""
    page = context.service.submissions(
        owner=owner,
        readable_by=who.reads_as,
        states=state,
        text=text,
        after=after,
        limit=limit,
        with_settings=False,
    )
    counts = context.store.progress([each.id for each in page.submissions])
    waits = context.queue.waits
    found = [study_of(each, waits.get(each.id), counts.get(each.id), settings=False) for each in page.submissions]
    return StudyPage(tuple(found), page.cursor)


def _view(found: Submission, context: ServiceContext) -> SubmittedStudy:
    counts = context.store.progress([found.id])
    return study_of(found, context.queue.waits.get(found.id), counts.get(found.id))


@router.get("/{id}")
def study(found: Readable, context: Context) -> SubmittedStudy:
    """Return one study."""
    return _view(found, context)


@router.patch("/{id}")
def change(found: Changeable, body: StudyChange, who: User, context: Context) -> SubmittedStudy:
    """Change the priority of a study, or who may read it."""
    if body.priority is not None:
        found = context.service.set_priority(found.id, body.priority, datetime.now(UTC))
    if body.shared is not None:
        found = context.service.share(found.id, body.shared)
    log_action(context, who, "change", found.id, "done")
    return _view(found, context)


@router.put("/{id}/watch")
def watch(found: Changeable, body: NewWatch, who: User, context: Context) -> SubmittedStudy:
    """Compare deployed servers with an ended study from now on; drift is an event, a message, and in the answer."""
    now, urls = datetime.now(UTC), context.deployed.checked(body.urls)
    promised(context.store, found.id)
    asked = {"urls": urls, "window_s": body.window_s, "since": now.isoformat()}
    found = context.service.set_watch(found.id, {**asked, "text": text_of(found.id, asked)}, now)
    log_action(context, who, "watch", found.id, "done")
    return _view(found, context)


@router.delete("/{id}/watch")
def unwatch(found: Changeable, who: User, context: Context) -> SubmittedStudy:
    """Compare deployed servers with the study no more."""
    found = context.service.set_watch(found.id, None, datetime.now(UTC))
    log_action(context, who, "unwatch", found.id, "done")
    return _view(found, context)


@router.delete("/{id}", status_code=204)
def delete(found: Changeable, who: User, context: Context) -> None:
    """Delete an ended study with its trials and files; what MLflow has of it stays there."""
    delete_study(found.id, context.service, context.url, submission_folder(context.folder, found.id))
    log_action(context, who, "delete", found.id, "done")


def _verb(name: str, act: Callable[[ServiceContext, str], Submission], summary: str) -> None:
    """Add `POST /v1/studies/ID:NAME`."""

    def verb(asked: Changeable, who: User, context: Context) -> SubmittedStudy:
        found = act(context, asked.id)
        log_action(context, who, name, found.id, found.state.value)
        return _view(found, context)

    verb.__name__, verb.__doc__ = name, summary
    router.add_api_route(f"/{{id}}:{name}", verb, methods=["POST"], summary=summary)


def _ask(request: Request) -> Callable[[ServiceContext, str], Submission]:
    return lambda context, id: context.service.request(id, request, datetime.now(UTC))


_verb("stop", _ask(Request.STOP), "Finish running trials, and conclude from what was measured.")
_verb("cancel", _ask(Request.CANCEL), "End at once, without a conclusion.")
_verb("resume", lambda context, id: context.service.resume(id, datetime.now(UTC), MOST_WAITING), "Queue it again.")
