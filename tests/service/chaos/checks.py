"""What must hold for a study that has ended, and for all of them at the end."""

import os
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

from records.trials import TrialRecord
from storage import open_store
from tests.service.chaos.figures import Figures
from tests.service.chaos.surroundings import TRIALS, Follower, Surroundings
from tests.service.running import wait_for
from tuner.service.queue.rules import SIMULATED

Use = tuple[str, str, str, str]
"""A device, when a study got it, when it gave it back, and the study."""


def check_study(around: Surroundings, figures: Figures, id: str, kind: str, follower: Follower) -> list[Use]:
    """Check a study that is done, end its follower, and return its uses of devices."""
    problems: list[str] = []
    records = finished(around, id)
    searched = sorted(number for number, round in records if not round)
    if len(searched) != TRIALS[kind]:  # a proposal that breaks a rule has a number, and is no trial
        problems.append(f"has the trials {searched}")
    events = around.events(id)
    numbers = list(range(1, len(events) + 1))
    if [event["number"] for event in events] != numbers:
        problems.append("its events have a gap")
    wait_for(lambda: len(follower.numbers) >= len(events) or None, f"the follower of {id}")
    follower.ended.set()
    if follower.numbers != numbers:
        problems.append("its follower had a gap or an event twice")
    told = Counter((each["about"]["number"], each["about"]["round"]) for each in events if each["kind"] == "trial")
    problems += [f"has two events of trial {key}" for key, count in told.items() if count > 1]
    problems += [f"has an event of trial {key}, which is not finished" for key in told if key not in records]
    found, uses = check_runs(id, events)
    figures.studies[kind] += 1
    figures.trials += len(records)
    figures.unseen += len(set(records) - set(told))
    figures.runs += sum(event["kind"] == "started" for event in events)
    figures.problems += [f"{id}: {problem}" for problem in (*problems, *found)]
    return uses


def check_runs(id: str, events: list[dict[str, Any]]) -> tuple[list[str], list[Use]]:
    """Return what is wrong with the order of a study's runs, and the uses of devices.

    Each run begins after the end of the one before, and only a run has trials.
    """
    problems: list[str] = []
    uses: list[Use] = []
    run: dict[str, Any] | None = None
    for event in events:
        if event["kind"] == "started":
            if run is not None:
                problems.append(f"a run began at event {event['number']}, and the one before had not ended")
            run = event["about"]
        elif event["kind"] == "measured" and run is not None:
            uses += [(device, run["at"], event["about"]["at"], id) for device in run["granted"]]
            run = {**run, "granted": []}
        elif event["about"].get("state") in ("QUEUED", "DONE", "STOPPED", "CANCELLED", "FAILED"):
            if run is not None:
                uses += [(device, run["at"], event["about"]["at"], id) for device in run["granted"]]
            run = None
        elif event["kind"] in ("trial", "trial_started") and run is None:
            problems.append(f"event {event['number']} is of a trial, and no run was active")
    if sum(event["kind"] == "done" for event in events) != 1:
        problems.append("did not end exactly once")
    return problems, uses


def check_devices(uses: list[Use]) -> list[str]:
    """Return the devices that two studies had at the same time."""
    pairs = pairwise(sorted(uses))
    return [f"{a} overlaps {b}" for a, b in pairs if a[0] == b[0] and b[1] < a[2]]


def finished(around: Surroundings, id: str) -> dict[tuple[int, int], TrialRecord]:
    """Return the finished trials of a study, by number and round; none before it begins."""
    with closing(open_store(around.storage)) as store:
        if all(study.name != id for study in store.studies()):
            return {}
        return {(each.number, each.round): each for each in store.trials(id, finished=True)}


def check_mlflow(around: Surroundings, figures: Figures, ids: list[str]) -> None:
    """Check that MLflow has each finished trial of these studies once, after a sync."""
    expected = sum(len(finished(around, id)) for id in ids)
    figures.late = expected - sum(logged(around).values())
    environment = {**os.environ, "TUNER_HOME": str(around.home)}
    environment |= {} if around.mlflow is None else {"MLFLOW_TRACKING_URI": around.mlflow.url}
    command = [sys.executable, "-m", "tuner", "study", "sync", "--storage", around.storage]
    done = subprocess.run(command, cwd=around.folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        figures.problems.append(f"tuner study sync: exit code {done.returncode}: {done.stderr[-400:]}")
    found = logged(around)
    if twice := [trial for trial, count in found.items() if count > 1]:
        figures.problems.append(f"MLflow has twice: {twice}")
    if len(found) != expected:
        figures.problems.append(f"MLflow has {len(found)} trials of {expected}")


def logged(around: Surroundings) -> Counter[str]:
    """Return how often MLflow has each trial."""
    database = around.folder / "tuner_study" / "mlflow.db" if around.mlflow is None else around.mlflow.database
    query = "select value from tags where key = 'tuner.trial'"
    with closing(sqlite3.connect(Path(database), timeout=30)) as connection:
        return Counter(value for (value,) in connection.execute(query))


def kind_of(id: str) -> str:
    """Return the kind of device in a study's name."""
    return SIMULATED if SIMULATED in id else "cpu"
