"""Export the winner of a study as a YAML file of its flags.

python docs/examples/exporter.py study.db STUDY winner.yaml
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from records.metrics import metric
from records.trials import StudyRecord, TrialRecord
from storage import open_store


def winner_of(study: StudyRecord, trials: list[TrialRecord]) -> TrialRecord:
    """Return the trial that the study's conclusion names.

    Raises:
        ValueError: if the study has no conclusion yet.
    """
    number = (study.conclusion or {}).get("winner")
    for trial in trials:
        if trial.number == number and trial.round == 0:
            return trial
    raise ValueError(f"study {study.name!r} has no winner yet; run `tuner optimize` to its end")


def winner_document(study: StudyRecord, winner: TrialRecord) -> dict[str, Any]:
    """Return the winner as plain data: where its numbers come from, its flags, its environment, its metrics."""
    assert winner.outcome is not None
    names = list(winner.verdict.values) if winner.verdict else []
    return {
        "study": study.name,
        "trial": winner.number,
        "provenance": winner.outcome.provenance.value,
        "model": study.premise["model"]["name"],
        "flags": {name: value for name, value in winner.config.items() if value is not None},
        "environment": dict(winner.outcome.environment),
        "metrics": {name: {"value": winner.outcome.metric(name), "unit": metric(name).unit} for name in names},
    }


def export_winner(storage: str, study_name: str, path: Path) -> None:
    """Write the winner of a study to `path` as YAML.

    Args:
        storage: a database file, or the URL of a database.
        study_name: the study.
        path: the file to write.

    Raises:
        StorageError: if the database cannot be used.
        ValueError: if there is no such study, or it has no winner yet.
    """
    with closing(open_store(storage)) as store:
        study = store.study(study_name)
        if study is None:
            raise ValueError(f"no study is called {study_name!r}; see `tuner study list`")
        document = winner_document(study, winner_of(study, store.trials(study_name)))
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    export_winner(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
