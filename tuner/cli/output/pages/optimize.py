"""The end of `tuner optimize`, and a study's conclusion: the verdict, the tables, and what to do next."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from records.measured import reference_of
from records.trials import Provenance, TrialKind, TrialRecord
from search_spaces.units import GIB
from tuner.cli.arguments import command, without_secrets
from tuner.cli.output.parts import FittedTable, show
from tuner.cli.output.progress.views import new_view
from tuner.cli.signals import stop_on_signals
from tuner.errors import EXIT_INTERRUPTED, EXIT_OURS, EXIT_SLOS_MISSED, EXIT_TIME_LIMIT
from tuner.processes.secrets import mask_url_passwords
from tuner.results import text
from tuner.results.conclusion import parts as parts_of_conclusion
from tuner.results.findings import Findings
from tuner.results.what_works import what_works
from tuner.settings.study import StudySettings
from tuner.study.conclusion import name_of
from tuner.study.protocols import MlflowLacks, RunEnding
from tuner.study.run import summary_facts
from tuner.use_cases.optimize import OptimizeResult, optimize


def conclusion_parts(findings: Findings) -> Iterator[RenderableType]:
    """Yield what is shown of a conclusion beside its reason; an empty line stands before each title."""
    for part in parts_of_conclusion(findings):
        if part.title:
            yield Text("")
            yield Text(part.title, style="bold")
        yield from map(Text, part.above)
        if part.grid is not None:
            yield FittedTable(part.grid)
        yield from (Text(line, style="yellow" if part.warns else "") for line in part.below)


MISSING = "start the server, which misses SLOs"

STOPPED = {
    RunEnding.DEFAULTS_FAILED: "the defaults fail, and no given configuration works",
    RunEnding.SAME_FAILURE: "every trial fails for one reason",
    RunEnding.INFRASTRUCTURE: "infrastructure fails",
}
"""Endings by failures, and how they are named."""

OTHER_STUDY = "--baseline, --env and flags of every server, after --, need another name (--study)"


def run_study(settings: StudySettings, *, plain: bool, as_json: bool) -> int:
    """Run the study behind a view, print its result and return the exit code."""
    view = new_view(plain)

    def say_interrupted() -> None:
        view.close()
        print(f"interrupted; the study is saved\n{_continue_with()}", file=sys.stderr, flush=True)

    try:
        with stop_on_signals(say_interrupted) as wishes, closing(view):
            result = optimize(settings, view, wishes)
    except KeyboardInterrupt:
        say_interrupted()
        return EXIT_INTERRUPTED
    return report(result, as_json=as_json)


def report(ended: OptimizeResult, *, as_json: bool) -> int:
    """Print how the run ended and return the exit code."""
    result, records = ended.run, ended.records
    if as_json:
        print(json.dumps(_document(ended), indent=1))
    else:
        show(*_parts(ended))
    if result.ending is RunEnding.INTERRUPTED:
        print(_continue_with(), file=sys.stderr)
        return EXIT_INTERRUPTED
    if result.conclusion is not None and result.conclusion.nearest is not None:
        return EXIT_SLOS_MISSED
    if result.ending is RunEnding.TIMEOUT and not ended.has_result:
        return EXIT_TIME_LIMIT
    if (
        result.conclusion is not None
        and result.conclusion.winner is None
        and any(r.state == "infeasible" for r in records)
    ):
        return EXIT_SLOS_MISSED
    failed = result.ending in STOPPED
    return EXIT_OURS if failed or not any(record.state in ("ok", "infeasible") for record in records) else 0


def _parts(ended: OptimizeResult) -> list[RenderableType]:
    lines = [*_ending_lines(ended.records), *_reason_lines(ended), *_what_works(ended)]
    parts: list[RenderableType] = [Text(line) for line in lines]
    conclusion, challenger = ended.run.conclusion, None
    if conclusion is not None:
        goals = ended.spec.goals
        defaults = ended.spec.space.known_defaults()
        workload = ended.spec.workload.model_dump(mode="json")
        findings = Findings(conclusion.to_dict(), ended.records, goals, defaults, ended.spec.price, workload)
        challenger = findings.challenger
        if conclusion.noise is not None:
            metric = goals.objectives[0].metric
            name = noise_name(ended.records)
            parts.append(Text(f"noise: {metric} of {name} varies by {conclusion.noise:.1%} between repeats"))
        parts += [Text(""), Text(conclusion.reason, style="bold"), *conclusion_parts(findings)]
    if ended.engine.provenance is Provenance.SIMULATED:
        hardware = ended.spec.facts["hardware"]
        line = f"all figures are predicted, not measured: {ended.engine.name} {ended.engine.version}, {hardware}"
        parts += [Text(""), Text(line, style="yellow")]
    return [*parts, *_next_steps(ended, challenger)]


def noise_name(records: Sequence[TrialRecord]) -> str:
    """Return the configuration whose repeats show the noise."""
    reference = reference_of(records)
    return "the defaults" if reference is None else name_of(reference)


def _ending_lines(records: tuple[TrialRecord, ...]) -> list[str]:
    facts = summary_facts(records)
    rounds = sum(bool(record.round) for record in records)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(facts["states"].items()))
    single = _reduced(records)
    measured = [text.count(len(records) - rounds - single, "trial")]
    measured += [f"{single} more of finalists and smaller forms"] if single else []
    measured += [f"{text.count(rounds, 'measurement')} in rounds"] if rounds else []
    lines = [f"{', '.join(measured)}: {counts}"]
    if facts["failures"]:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(facts["failures"].items()))
        lines.append(f"failures: {kinds}")
    simulated = any(r.outcome is not None and r.outcome.provenance is Provenance.SIMULATED for r in records)
    kind = "simulated time" if simulated else "time"
    lines.append(f"{kind} on workers: {text.timings(facts['seconds']) or 'under a second'}")
    return lines


def _reduced(records: Sequence[TrialRecord]) -> int:
    """Return the number of single trials of smaller forms and of the finalists beside them."""
    return sum(record.kind is TrialKind.REDUCED for record in records)


def _reason_lines(ended: OptimizeResult) -> list[str]:
    """Return why the run ended before all trials, if it did."""
    result, lines = ended.run, []
    if result.space_exhausted:
        lines.append("the search space has no other configuration: all were measured")
    if result.converged is not None:
        lines.append(
            f"the search ended early: {result.converged} trials in a row raised the best score by less than "
            "--min-gain; use --min-gain 0 to continue"
        )
    if result.ending is RunEnding.TIMEOUT:
        searching = ended.has_result or not any(record.succeeded for record in ended.records)
        stage = "search before all trials" if searching else "rounds before all measurements"
        lines.append(f"--timeout ended the {stage}; run the same command to continue")
    if result.ending is RunEnding.INTERRUPTED:
        lines.append("interrupted; the study is saved")
    if result.reason is not None and result.ending in STOPPED:
        lines.append(f"stopped: {STOPPED[result.ending]}: {result.reason.kind.value}: {result.reason.message}")
        lines += ["  " + line for line in (result.reason.evidence or "").splitlines()]
    return lines


def _what_works(ended: OptimizeResult) -> list[str]:
    """Return what to do after failures.

    Where the defaults fail: more GPUs if the weights alone do not fit, else a configuration that works.
    """
    context, run = ended.spec.space.context, ended.run
    if run.reason is not None and run.ending is RunEnding.INFRASTRUCTURE:
        return ["the same command then continues"]
    if run.reason is None or run.ending not in (RunEnding.DEFAULTS_FAILED, RunEnding.SAME_FAILURE):
        return []
    weights = 0.0 if context.model is None else context.model.weight_bytes() / GIB
    card, gpus = context.hardware.memory_gib, context.gpus
    if card is None or weights < card * gpus:
        told, config = what_works(run.reason, ended.spec.space)
        example = f" '{json.dumps(config)}', for example," if config else ", with parameters of the space,"
        return [f"{told}: --enqueue{example} continues this study; {OTHER_STUDY}"]
    fewest = 2 ** math.ceil(math.log2(weights / card))
    return [
        f"the weights take {weights:,.1f} GiB, and a trial has {text.count(gpus, 'GPU')} of {card:,.1f} GiB; give it "
        f"more in another study: --gpus-per-trial {fewest} -- --tensor-parallel-size {fewest}, or a smaller format"
    ]


def _next_steps(ended: OptimizeResult, challenger: int | None) -> list[RenderableType]:
    """Return the commands that make sense now, a purpose and a command a line."""
    steps, name = [], ended.spec.name
    if ended.script is not None:
        script = dotted(ended.script)
        start = "start the server" if ended.run.conclusion is None or ended.run.conclusion.nearest is None else MISSING
        steps.append((start, script))
        if ended.engine.provenance is Provenance.MEASURED:  # else this machine may have no engine, and nothing measured
            steps.append(("verify its figures", f"{script} --verify"))
    if ended.check is not None:
        steps.append(("check the answers", ended.check))
    if ended.report is not None:
        steps.append(("read the report", shlex.quote(os.path.relpath(ended.report))))
    if any(record.state in ("ok", "infeasible") for record in ended.records):
        steps.append(("list the best trials", command("study", "trials", name, "--sort", "score", "--top", "10")))
    if any(record.state == "failed" for record in ended.records):
        steps.append(("list the failures", command("study", "trials", name, "--failed")))
    if challenger is not None:
        steps.append(("show one in full", command("study", "trial", f"{name}#{challenger}")))
    steps.append(("compare in MLflow", _mlflow_place(ended.tracking_uri, name)))
    if ended.mlflow_lacks is not MlflowLacks.NOTHING:
        rest = "trials that MLflow lacks" if ended.mlflow_lacks is MlflowLacks.TRIALS else "conclusion to MLflow"
        steps.append((f"log the {rest}", command("study", "sync", name)))
    width = max(len(purpose) for purpose, _ in steps)
    lines = [Text(f"  {purpose:<{width}}  {command}", no_wrap=True, overflow="ignore") for purpose, command in steps]
    return [Text(""), Text("next", style="bold"), *lines]


def dotted(script: Path) -> str:
    """Return the script as a shell starts it."""
    path = os.fspath(script)
    return shlex.quote(path if "/" in path else f"./{path}")


def _mlflow_place(tracking_uri: str, study: str) -> str:
    return mask_url_passwords(tracking_uri) if tracking_uri.startswith("http") else command("study", "ui", study)


def _continue_with() -> str:
    """Return the command line of this process, quoted, with references for its secrets."""
    return f"continue with: {shlex.join(['tuner', *without_secrets(sys.argv[1:])])}"


def _document(ended: OptimizeResult) -> dict[str, Any]:
    result, records = ended.run, ended.records
    return {
        "study": ended.spec.name,
        "ending": result.ending.value,
        "converged": result.converged is not None,
        "provenance": ended.engine.provenance.value,
        "engine": {"name": ended.engine.name, "version": ended.engine.version},
        "price": ended.spec.price.to_dict() if ended.spec.price else None,
        "trials": len([record for record in records if not record.round]) - _reduced(records),
        "reduced": _reduced(records),
        **summary_facts(records),
        "conclusion": result.conclusion.to_dict() if result.conclusion else None,
        "reason": result.reason.message if result.reason else None,
        "script": os.fspath(ended.script) if ended.script else None,
        "mlflow_complete": ended.mlflow_lacks is MlflowLacks.NOTHING,
        "mlflow_lacks": ended.mlflow_lacks.value,
    }
