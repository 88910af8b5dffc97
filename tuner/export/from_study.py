"""Build the deployment of a trial from the records of its study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from records.measured import measured, outcomes_of, rounds_of, search_trial
from records.metrics import ENERGY
from records.trials import Phase, StudyRecord, TrialKind, TrialOutcome, TrialRecord
from search_spaces import Price
from tuner.engines.command_line import command_of, engine_of, premise_of_trial, program_of
from tuner.engines.kind import Feature, Program
from tuner.engines.kinds import kind_of
from tuner.engines.server.devices import OWN_VARIABLES
from tuner.engines.vllm.kind import INSTANCES
from tuner.errors import SettingError, see_trials, trials_command
from tuner.export.deployment import Deployment
from tuner.export.references import Reference, references
from tuner.export.verification import Verification, verification
from tuner.processes.secrets import referenced
from tuner.quality.examiner import changed_answers, check_command, checked_answers, line_of
from tuner.results import text
from tuner.scoring.cost import throughput_behind
from tuner.scoring.flag_effects import effect_together, flag_effect_lines
from tuner.scoring.goals import Slo, parse_objective, parse_slo
from tuner.specs import ModelRef
from tuner.workloads.spec import Suite, Workload, read_workload

ALWAYS_COMPARED = "p99_itl_ms"
"""It is compared and shown also if it is no objective: bunched tokens show in no other metric."""


def deployment_of(
    study: StudyRecord, number: int, records: Sequence[TrialRecord], tuner: str | None = None
) -> Deployment:
    """Return the deployment of a trial.

    Args:
        study: the trial's study.
        number: the trial.
        records: all trials of the study, rounds included.
        tuner: the path of this tuner, for the script; None: unknown.

    Raises:
        SettingError: when there is no such trial, or it was not measured.
    """
    trial, outcome = _measured(study, number, records)
    premise = premise_of_trial(study.premise, trial.config)
    workload, comparable = _workload_and_records(premise, number, records)
    startup_s, weights_gib = _start(outcomes_of(records, number))
    slos = tuple(parse_slo(text) for text in premise["slos"])
    capacity = trial.kind is TrialKind.CAPACITY or "capacity" in _objectives(premise)
    names, shown = _compared(premise, workload, capacity), measured(study.conclusion, records, number)
    recorded, price = references(number, comparable, names, shown), Price.from_dict(study.facts.get("price"))
    sent = _sent(premise, workload, recorded, outcomes_of(comparable, number), capacity=capacity)
    program = program_of(engine_of(premise), command_of(premise), outcome.argv)
    served_model, argv = _server_arguments(outcome.argv, program, premise["model"]["name"])
    return Deployment(
        study=study.name,
        trial=trial.number,
        model=served_model,
        served_name=premise["model"]["name"],
        argv=argv,
        # without those that only a trial needs
        environment={name: value for name, value in outcome.environment.items() if name not in OWN_VARIABLES},
        vllm_version=premise["engine"]["version"],
        device=outcome.device,
        date=outcome.ended_at.date(),
        provenance=outcome.provenance,
        numbers=tuple((name, text.with_unit(name, each.value, price)) for name, each in recorded.items()),
        answers=(answers := _answers(study, trial, outcome)),
        slos=slos,
        verdict=_verdict(study, trial),
        executable=_executable(study, outcome, program),
        flag_effects=_flag_effects(study, number, records),
        references=_references(premise),
        missed=_missed(study, trial, price),
        verification=replace(sent, unverified=(*sent.unverified, *_unmeasured_quality(slos, outcome, answers))),
        tuner=tuner,
        drivers=tuple(study.facts.get("drivers", ())),
        program=program,
        folder=study.facts.get("folder"),
        gpus=int(study.facts.get("gpus", 1)),
        startup_s=startup_s,
        weights_gib=weights_gib,
    )


def _start(outcomes: Sequence[TrialOutcome]) -> tuple[float | None, float | None]:
    """Return the longest start-up in seconds, and the memory of the weights in GiB; None for what is not recorded."""
    weights = [each.server.weights_gib for each in outcomes if each.server is not None]
    starts = (each.timings[Phase.READY] for each in outcomes if Phase.READY in each.timings)
    return max(starts, default=None), max((each for each in weights if each is not None), default=None)


def _sent(
    premise: Mapping[str, Any],
    workload: Workload,
    recorded: Mapping[str, Reference],
    own: Sequence[TrialOutcome],
    *,
    capacity: bool,
) -> Verification:
    """Return what the script sends to verify its server."""
    model = premise["model"]
    return verification(
        ModelRef(model["name"], model["tokenizer"], model["name"]),
        workload,
        recorded,
        own,
        premise.get("files", {}),
        capacity,
        engine_of(premise),
        tokenizers=[each["model"]["tokenizer"] for each in premise.get("engines", {}).values()],
    )


def verified_workload(study: StudyRecord, number: int, records: Sequence[TrialRecord]) -> Workload:
    """Return the workload that a trial was measured with."""
    return _workload_and_records(study.premise, number, records)[0]


def _objectives(premise: Mapping[str, Any]) -> list[str]:
    return [parse_objective(text).metric for text in premise["objectives"]]


def _compared(premise: Mapping[str, Any], workload: Workload, capacity: bool) -> list[str]:
    """Return the metrics whose recorded values the script has: objectives, and `ALWAYS_COMPARED` of each workload.

    A throughput stands for the cost that follows from it. The energy is not measured again.
    """
    objectives = [throughput_behind(name) for name in _objectives(premise) if name.rpartition(".")[2] != ENERGY]
    parts = [f"{name}." for name in workload.loads] if isinstance(workload, Suite) else [""]
    always = [f"{part}{ALWAYS_COMPARED}" for part in parts]
    return list(dict.fromkeys([*objectives, *(["capacity"] if capacity else []), *always]))


def _unmeasured_quality(slos: Sequence[Slo], outcome: TrialOutcome, answers: str | None) -> list[str]:
    """Return what the study knows about the quality of the answers, which a verification does not measure."""
    quality = outcome.metric("quality")
    found = "nothing" if quality is None else f"{quality:.3f}"
    lines = [f"SLO {slo}: not measured by --verify; the study found {found}" for slo in slos if slo.metric == "quality"]
    return [*lines, *([] if answers is None else [f"answers: {answers}; not measured by --verify"])]


def _measured(study: StudyRecord, number: int, records: Sequence[TrialRecord]) -> tuple[TrialRecord, TrialOutcome]:
    trial = search_trial(records, number)
    if trial is None:
        raise SettingError("trial", number, f"study {study.name!r} has no such trial", see_trials(study.name))
    outcome = trial.outcome
    if outcome is None or not outcome.succeeded:
        why = outcome.failure.message if outcome and outcome.failure else "it has not finished"
        remedy = f"choose one that {trials_command(study.name)} lists as ok"
        raise SettingError("trial", number, f"it has no measurements ({why})", remedy)
    return trial, outcome


def _answers(study: StudyRecord, trial: TrialRecord, outcome: TrialOutcome) -> str | None:
    """Return what is known about the answers of a configuration that may change them; None for another."""
    names = ", ".join(changed_answers(study, trial))
    if not names:
        return None
    quality = outcome.metric("quality")
    if quality is not None:
        return f"quality {quality:.3f} of the unquantized model's accuracy with {names}"
    fact = checked_answers(study, trial)
    if fact is not None:
        return line_of(fact, names)
    if not kind_of(engine_of(study.premise)).can(Feature.OWN_CLIENT):
        return f"NOT CHECKED: {names} may change the answers"
    return f"NOT CHECKED: {names} may change the answers; `{check_command(study, trial)}` compares them"


def _workload_and_records(
    premise: Mapping[str, Any], number: int, records: Sequence[TrialRecord]
) -> tuple[Workload, list[TrialRecord]]:
    """Return the workload that the trial was measured with, and the records that were measured with it.

    The search may send fewer requests than the rounds do (`StudySpec.search_prompts`). Its measurements and those of
    the rounds are then not comparable; a finalist is represented by the rounds.
    """
    workload, searched = read_workload(premise["workload"]), premise.get("search")
    if searched is None:
        return workload, list(records)
    rounds = [record for record in records if record.round > 0]
    if rounds_of(records, number):
        return workload, rounds
    return workload.model_copy(update=searched), [record for record in records if record.round == 0]


def _server_arguments(argv: Sequence[str], program: Program, name: str) -> tuple[str, tuple[str, ...]]:
    """Split the command of a trial's server into the model and the arguments after it, without the model's name.

    A user's command has the model's name anywhere or nowhere; its flags are those of the trial.
    """
    if program.command:
        return name, program.flags_of(argv)
    marker = program.model_flag or program.subcommand[-1]
    start = list(argv).index(marker)
    words = [*argv[start + 2 :]]
    arguments: list[str] = []
    position = 0
    while position < len(words):
        if words[position] == program.name_flag:
            position += 2
            continue
        arguments.append(words[position])
        position += 1
    return argv[start + 1], tuple(arguments)


def _executable(study: StudyRecord, outcome: TrialOutcome, program: Program) -> str | None:
    """Return the file that the trial ran; None if it is not known, as in a simulated study."""
    if program == INSTANCES or "engines" in study.premise:
        return outcome.argv[0] if "/" in outcome.argv[0] else None
    found = study.facts.get("executable")
    return None if found is None else str(found)


def _references(premise: Mapping[str, Any]) -> frozenset[str]:
    """Return the variables of the caller's environment that the study's servers need."""
    server = premise.get("server", {})
    words = (*server.get("arguments", ()), *server.get("command", ()))
    return referenced((*words, *server.get("environment", {}).values()))


def _verdict(study: StudyRecord, trial: TrialRecord) -> str:
    conclusion = study.conclusion
    nearest = (conclusion or {}).get("nearest") or {}
    if conclusion is not None and trial.number in (conclusion.get("winner"), nearest.get("number")):
        return str(conclusion["reason"])
    return f"trial {trial.number} was selected by hand; it is not the winner of the study"


def _missed(study: StudyRecord, trial: TrialRecord, price: Price | None) -> tuple[str, ...]:
    """Return lines about each SLO that a trial misses, and the rate at which all hold; empty if it misses none."""
    nearest = (study.conclusion or {}).get("nearest") or {}
    if nearest.get("number") != trial.number:
        constraints = {} if trial.verdict is None else trial.verdict.constraints
        return tuple(f"{name}: missed in the search" for name, value in constraints.items() if value > 0)
    lines = [
        f"{each['slo']}: {text.with_unit(parse_slo(each['slo']).metric, each['value'], price)}, "
        f"{each['excess']:+.0%} beyond the bound"
        for each in nearest["slos"]
        if each["excess"] > 0 and each["value"] is not None
    ]
    if nearest["capacity"] is not None:
        lines.append(f"but all SLOs hold at {nearest['capacity']:.3g} requests/s; the workload has {nearest['rate']:g}")
    return tuple(lines)


def _flag_effects(study: StudyRecord, number: int, records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Return lines with the flag effects of the winner; empty for other trials, whose effects are not estimated."""
    conclusion = study.conclusion or {}
    if conclusion.get("winner") != number:
        return ()
    lines = flag_effect_lines(study.flag_effects, records, effect_together(conclusion, records))
    known = {each["name"] for each in study.flag_effects}
    winner = next(record for record in records if record.number == number and not record.round)
    others = [f"{name}={value}" for name, value in winner.config.items() if value is not None and name not in known]
    lines += [f"effect not measured: {', '.join(others)}"] if others else []
    return tuple(line.strip() for line in lines)
