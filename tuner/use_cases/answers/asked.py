"""What is compared: the candidate and its reference, from settings or from a trial of a study."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from storage.records import Provenance, StudyRecord, TrialRecord
from storage.store import Store
from tuner.engines.command_line import engine_of
from tuner.engines.kind import Feature
from tuner.engines.kinds import kind_of
from tuner.engines.server.environment import OWN_VARIABLES
from tuner.engines.user_paths import absolute_arguments
from tuner.errors import SettingError
from tuner.processes.secrets import NO_SECRETS, Secrets
from tuner.quality.checked import CHECKED, changed_answers, check_command, is_checked
from tuner.quality.examiner import Variant
from tuner.quality.formats import FORMAT_FLAGS, formats_of, split_flags, without_format_variables
from tuner.specs import ModelRef
from tuner.study.specification.find_model import find_model
from tuner.study.specification.secret_settings import refer_to_secrets
from tuner.study.specification.settings import ServerSettings
from tuner.use_cases.places import find_study

DEFAULT_MODEL = "Qwen/Qwen2.5-0.5B"

_OF_THE_TRIAL = frozenset({"--host", "--port", "--served-model-name", "--max-num-seqs", "--max-num-batched-tokens"})
"""Flags of a trial's server that the server of a check has not: its own, and the batches of a benchmark."""


@dataclass(frozen=True)
class Asked:
    """A candidate and its reference; `study` is the name of the candidate's study, None for one from settings."""

    candidate: Variant
    reference: Variant
    secrets: Secrets = NO_SECRETS
    study: str | None = None
    executable: str | None = None


def reference_of(variant: Variant) -> Variant:
    """Return the variant without the flags and variables that change answers."""
    kept, _ = split_flags(variant.argv, FORMAT_FLAGS)
    return replace(variant, argv=kept, environment=without_format_variables(variant.environment))


def given(model: str | None, reference: str | None, server: ServerSettings) -> Asked:
    """Return a model with the flags of a server; see `QualitySettings`.

    Raises:
        SettingError: for a model that is not found, and a secret flag with a literal value.
    """
    settings, secrets = refer_to_secrets(server, os.environ)
    found, _ = find_model(model or DEFAULT_MODEL, None)
    original, _ = find_model(reference or found.name, None)
    candidate = Variant(found, absolute_arguments(settings.arguments), settings.environment)
    return Asked(candidate, reference_of(replace(candidate, model=original)), secrets)


def studied(store: Store, name: str, number: int | None, reference: str | None) -> Asked:
    """Return a trial of a study and the study's own model.

    Args:
        store: with the study.
        name: the study.
        number: the trial; None: the winner.
        reference: the unquantized model; None: the study's model.

    Raises:
        SettingError: where there is no such study or trial, it has no server, or nothing in it changes answers.
    """
    study = find_study(store, name)
    if study.provenance is Provenance.SIMULATED:
        raise SettingError("study", study.name, "it is simulated: no server answered", "give a measured study")
    if not kind_of(engine_of(study.premise)).can(Feature.QUALITY):
        rule = f"it ran {engine_of(study.premise)}, and answers are compared with vLLM only"
        raise SettingError("study", study.name, rule, "give a study of vLLM")
    record = _trial(store, study, number)
    assert record.outcome is not None
    words = record.outcome.argv
    start = words.index("serve")
    argv, _ = split_flags(words[start + 2 :], _OF_THE_TRIAL)
    environment = {name: value for name, value in record.outcome.environment.items() if name not in OWN_VARIABLES}
    server, secrets = refer_to_secrets(ServerSettings(argv, environment, ()), os.environ)
    named = study.premise["model"]
    original, _ = find_model(reference or str(named["name"]), None)
    model = ModelRef(words[start + 1], named["tokenizer"], original.served_name)
    candidate = Variant(model, server.arguments, server.environment)
    without = reference_of(replace(candidate, model=original))
    if candidate.model.name == without.model.name and candidate.formats == without.formats:
        rule = f"trial {record.number} of study {study.name!r} has no flag that changes answers"
        raise SettingError("trial", None, rule, "its answers are the model's own")
    return Asked(candidate, without, secrets, study.name, study.facts.get("executable"))


def _trial(store: Store, study: StudyRecord, number: int | None) -> TrialRecord:
    if number is None:
        number = (study.conclusion or {}).get("winner")
    if number is None:
        raise SettingError("trial", None, f"study {study.name!r} has no winner", "give {trial} N, see `tuner trials`")
    record = store.trial(study.name, number)
    if record is None or record.outcome is None or "serve" not in record.outcome.argv:
        rule = f"study {study.name!r} has no such trial with a server"
        raise SettingError("trial", number, rule, "choose one that `tuner trials` lists as ok")
    return record


def keep_in_study(store: Store, asked: Asked, fact: Mapping[str, Any]) -> None:
    """Store what was found with the study, for its script and for other trials with the same formats."""
    assert asked.study is not None
    study = find_study(store, asked.study)
    candidate = asked.candidate
    key = formats_of(candidate.model.name, candidate.argv, candidate.environment)
    store.update_study(asked.study, {CHECKED: {**study.facts.get(CHECKED, {}), key: dict(fact)}})


def check_of_winner(store: Store, name: str) -> str | None:
    """Return the command that checks the winner's answers; None where none may differ, or where they were compared."""
    study = store.study(name)
    winner = None if study is None else (study.conclusion or {}).get("winner")
    trial = None if winner is None else store.trial(name, winner)
    if study is None or trial is None or study.provenance is Provenance.SIMULATED:
        return None
    if not kind_of(engine_of(study.premise)).can(Feature.QUALITY):
        return None
    return check_command(study, trial) if changed_answers(study, trial) and not is_checked(study, trial) else None
