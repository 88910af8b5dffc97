"""What a study expects of the day after: its winner and reference, the load, the gain, the metrics and the versions.

It comes from a study of the database, or from a YAML file that an earlier recheck saved and that a repository keeps.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from records.measured import exported_of, reference_number
from records.trials import Provenance, StudyRecord, TrialRecord
from search_spaces import Price, space_names
from search_spaces.yaml_file import YamlError, plain_yaml, read_yaml
from tuner.engines.command_line import command_of, engine_of, sampling_arguments
from tuner.errors import SettingError, UserError, reason_of
from tuner.export.deployment import Deployment
from tuner.export.from_study import deployment_of, verified_workload
from tuner.export.references import Reference
from tuner.export.words import without_trial_settings
from tuner.scoring.change import Promise
from tuner.scoring.goals import Goals
from tuner.specs import ModelRef
from tuner.study.conclusion import name_of
from tuner.study.specification.resolve_workload import make_goals
from tuner.workloads.spec import ClosedLoop, Workload, read_workload
from tuner.workloads.traffic import absolute_from, is_as_read, with_files

FORMAT = 1
"""Version of the file's format."""

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Setup:
    """A server that is measured: its name in texts, the model, its flags and variables with references for secrets."""

    name: str
    model: str
    flags: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Again:
    """How `tuner optimize` repeats a study: its settings but the study's name and traffic, and the servers' flags."""

    settings: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expected:
    """What is expected of today.

    Attributes:
        study: name of the study.
        provenance: measured or simulated.
        engine, version: of the study.
        device, drivers: it ran on.
        gpus: of a server.
        served_name, tokenizer: of the model.
        command, folder: of a user's command.
        workload: the load; `files` are the digests of the files that it reads.
        objectives, slos: of the study, as texts.
        winner: what the study recommends.
        reference: what the winner was compared with; None where that is the winner itself.
        gain: score of the winner relative to the reference; None without both.
        metrics: recorded metrics of the winner with their intervals.
        has_met_slos: whether the winner met the SLOs.
        repeats: benchmarks of a measurement.
        defaults: what was known of the engine's defaults, by parameter, and `space` the name of the search space.
        price: of a GPU-hour.
        again: how the study is repeated.
    """

    study: str
    provenance: Provenance
    engine: str
    version: str
    device: str
    served_name: str
    tokenizer: str
    workload: Workload
    objectives: tuple[str, ...]
    slos: tuple[str, ...]
    winner: Setup
    reference: Setup | None = None
    gain: Promise | None = None
    metrics: Mapping[str, Reference] = field(default_factory=dict)
    has_met_slos: bool = True
    repeats: int = 1
    drivers: tuple[str, ...] = ()
    gpus: int = 1
    command: tuple[str, ...] = ()
    folder: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    space: str | None = None
    price: Price | None = None
    again: Again = Again()

    __pydantic_config__ = ConfigDict(extra="forbid")

    @property
    def goals(self) -> Goals:
        """The goals, without the SLO on quality, which no recheck measures."""
        return make_goals(self.objectives, [each for each in self.slos if not each.startswith("quality")])

    @property
    def setups(self) -> tuple[Setup, ...]:
        """The reference, if there is one, and the winner."""
        return (self.winner,) if self.reference is None else (self.reference, self.winner)

    def model(self, setup: Setup) -> ModelRef:
        """Return the model that a setup serves."""
        return ModelRef(setup.model, self.tokenizer, self.served_name)


def expected_of(study: StudyRecord, records: Sequence[TrialRecord]) -> Expected:
    """Return what a study expects.

    Args:
        study: the study.
        records: all its trials, rounds included.

    Raises:
        UserError: for a study without a winner, of several engines or of several nodes.
    """
    conclusion, premise, facts = study.conclusion, study.premise, study.facts
    chosen = exported_of(conclusion)
    if chosen is None:
        raise SettingError("study", study.name, "it has no winner yet", "let `tuner optimize` end it, or give {trial}")
    if "engines" in premise or int(facts.get("nodes", 1)) > 1:
        rule = "a recheck measures one engine on one machine, and this study has several"
        raise SettingError("study", study.name, rule, "compare a running server with it: `tuner server verify`")
    script, reference = deployment_of(study, chosen, records), reference_number(conclusion, records)
    contenders = {each["number"]: each["score"] for each in (conclusion or {}).get("contenders", ())}
    gain = contenders.get(chosen)
    known = {record.number: name_of(record) for record in records if not record.round}
    other = None if reference is None or reference == chosen else deployment_of(study, reference, records)
    return Expected(
        study=study.name,
        provenance=study.provenance,
        engine=engine_of(premise),
        version=script.vllm_version,
        device=script.device,
        served_name=script.served_name,
        tokenizer=premise["model"]["tokenizer"],
        workload=verified_workload(study, chosen, records),
        objectives=tuple(premise["objectives"]),
        slos=tuple(premise["slos"]),
        winner=_setup(f"trial {chosen}", script),
        reference=None if other is None else _setup(known.get(other.trial, f"trial {other.trial}"), other),
        gain=None if gain is None or other is None else Promise.of(gain),
        metrics=dict(script.verification.reference),
        has_met_slos=(conclusion or {}).get("winner") == chosen,
        repeats=script.verification.repeats,
        drivers=script.drivers,
        gpus=script.gpus,
        command=command_of(premise),
        folder=script.folder,
        files=premise.get("files", {}),
        defaults=facts.get("engine_defaults", {}),
        space=premise["space"]["name"],
        price=Price.from_dict(facts.get("price")),
        again=_again(study),
    )


_CLOSED_LOOP = ("max_concurrency", "num_prompts", "input_len", "output_len")


def _again(study: StudyRecord) -> Again:
    """Return how a study is repeated, as far as its record tells."""
    premise, facts = study.premise, study.facts
    workload, engine, server = read_workload(premise["workload"]), engine_of(premise), premise["server"]
    simulated = study.provenance is Provenance.SIMULATED
    pairs = [("preset", facts["preset"]), ("model", premise["model"]["name"])]
    pairs += [("tokenizer", premise["model"]["tokenizer"])] if not simulated else []
    pairs += [("engine", "simulated" if simulated else engine)]
    pairs += [("space", name)] if (name := premise["space"]["name"]) in space_names(engine) else []
    pairs += [("baseline", json.dumps(premise["baseline"]))] if "baseline" in premise else []
    pairs += [("objective", each) for each in premise["objectives"]]
    pairs += [("env", f"{name}={value}") for name, value in server["environment"].items()]
    pairs += [("server_command", shlex.join(server["command"]))] if server.get("command") else []
    classes = tuple(f"{name}." for name in workload.slos)
    pairs += [("slo", each) for each in premise["slos"] if not each.startswith(classes)]
    if isinstance(workload, ClosedLoop):
        pairs += [(name, str(getattr(workload, name))) for name in _CLOSED_LOOP]
    sampling = len(sampling_arguments(workload.temperature, engine))
    return Again(tuple(pairs), tuple(server["arguments"][sampling:]))


def _setup(name: str, script: Deployment) -> Setup:
    flags = script.argv if script.program.command else without_trial_settings(script.argv)
    return Setup(name, script.model, flags, script.variables)


def write_expected(path: Path, expected: Expected) -> None:
    """Write the file; paths of the load's files are relative to it where they are below its folder.

    Raises:
        UserError: if it cannot be written.
    """
    folder = path.absolute().parent
    data = _EXPECTED.dump_python(expected, mode="json", exclude_none=True, exclude_defaults=True)
    data["workload"] = with_files(data["workload"], lambda file: os.path.relpath(file, folder))
    data["files"] = {os.path.relpath(name, folder): digest for name, digest in expected.files.items()}
    try:
        path.write_text(plain_yaml({"tuner_recheck": FORMAT, **data}), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {reason_of(error)}; give another file") from None


def read_expected(path: Path) -> Expected:
    """Read what `write_expected` wrote.

    Raises:
        UserError: for a file that is none, or whose load reads a file that is gone or has changed.
    """
    try:
        data = dict(read_yaml(path).data or {})
    except YamlError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise SettingError("study", str(path), f"the file cannot be read: {reason_of(error)}", "give another") from None
    if data.pop("tuner_recheck", None) != FORMAT:
        rule = f"this is no file of a recheck in format {FORMAT}"
        raise SettingError("study", str(path), rule, "write one: `tuner recheck STUDY` with {save}")
    try:
        return _expected(data, path.absolute().parent)
    except ValidationError as error:
        first = error.errors()[0]
        rule = f"the file is damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (KeyError, TypeError, AttributeError) as error:
        rule = f"the file is damaged: {type(error).__name__}: {error}"
    raise SettingError("study", str(path), rule, "write it again: `tuner recheck STUDY` with {save}") from None


def _expected(data: dict[str, Any], folder: Path) -> Expected:
    files = {str((folder / name).resolve()): digest for name, digest in data.get("files", {}).items()}
    _check_files(files)
    workload = read_workload(with_files(data["workload"], absolute_from(folder.resolve())))
    return _EXPECTED.validate_python({**data, "files": files, "workload": workload})


_EXPECTED = TypeAdapter(Expected)


def _check_files(files: Mapping[str, str]) -> None:
    """Refuse files of the load that are gone or have changed."""
    for name, digest in files.items():
        if not is_as_read(Path(name), digest):
            raise SettingError("study", name, "the load reads this file, which is not there as it was", "restore it")
