"""What a finished run says: counts, finalists, the verdict, the script, the next command; and its exit code."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from storage.records import Provenance, TrialRecord
from tuner.cli.output import text
from tuner.engines.base import EngineInfo
from tuner.errors import EXIT_INTERRUPTED, EXIT_OURS
from tuner.scoring.flag_effects import flag_effect_lines
from tuner.study.conclusion.decide import Conclusion
from tuner.study.protocols import RunEnding
from tuner.study.run import RunResult, summary_facts
from tuner.study.spec import StudySpec
from tuner.use_cases.optimize import OptimizeResult


def report(ended: OptimizeResult, *, as_json: bool) -> int:
    """Print how the run ended and return the exit code."""
    result, script, logged = ended.run, ended.script, ended.mlflow_complete
    spec, info, records = ended.spec, ended.engine, list(ended.records)
    lines = [*_ending_lines(result, records), *_conclusion_lines(spec, records, result.conclusion)]
    if info.provenance is Provenance.SIMULATED:
        lines.append(f"all figures are predicted, not measured: {info.name} {info.version}, {spec.facts['hardware']}")
    if script is not None:
        lines.append(f"wrote {script}: start it by `{_dotted(script)}`, check it by `{_dotted(script)} --verify`")
    if not logged:
        lines.append("MLflow lacks some trials; `tuner sync` logs them once it answers")
    if as_json:
        print(json.dumps(_as_json(result, spec, info, records, script, logged), indent=1))
    else:
        print("\n".join(lines))
    if result.ending is RunEnding.INTERRUPTED:
        print(f"go on with: {resume_command()}", file=sys.stderr)
        return EXIT_INTERRUPTED
    failed = result.ending in (RunEnding.SAME_FAILURE, RunEnding.INFRASTRUCTURE)
    return EXIT_OURS if failed or not any(record.state in ("ok", "infeasible") for record in records) else 0


def _predicted(records: list[TrialRecord]) -> str:
    """Return the word that goes before figures of a simulation; nothing before measured ones."""
    simulated = any(r.outcome is not None and r.outcome.provenance is Provenance.SIMULATED for r in records)
    return "predicted " if simulated else ""


def _dotted(script: Path) -> str:
    """Return the script as a shell starts it."""
    text = os.fspath(script)
    return shlex.quote(text if "/" in text else f"./{text}")


def resume_command() -> str:
    """Return the command line of this process, quoted."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _ending_lines(result: RunResult, records: list[TrialRecord]) -> list[str]:
    facts = summary_facts(records)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(facts["states"].items()))
    lines = [
        f"{len([r for r in records if not r.round])} trials and {len([r for r in records if r.round])} "
        f"re-measurements: {counts}"
    ]
    if facts["failures"]:
        lines.append("failures: " + ", ".join(f"{kind} {n}" for kind, n in sorted(facts["failures"].items())))
    lines.append(f"{_predicted(records)}time on workers: " + (text.timings(facts["seconds"]) or "under a second"))
    if result.ran_dry:
        lines.append("the space has no further configuration; every one was measured")
    if result.converged:
        lines.append("the search has settled: too little is expected of another trial; --min-gain 0 goes on")
    if result.ending is RunEnding.TIMEOUT:
        lines.append("the time was up before the trials were; run the same command to go on")
    if result.ending is RunEnding.INTERRUPTED:
        lines.append("interrupted; the study is saved")
    if result.reason is not None and result.ending in (RunEnding.SAME_FAILURE, RunEnding.INFRASTRUCTURE):
        what = "every trial fails for one reason" if result.ending is RunEnding.SAME_FAILURE else "infrastructure fails"
        lines.append(f"stopped: {what}: {result.reason.kind.value}: {result.reason.message}")
        if result.reason.evidence:
            lines += ["  " + line for line in result.reason.evidence.splitlines()]
    return lines


def _conclusion_lines(spec: StudySpec, records: list[TrialRecord], conclusion: Conclusion | None) -> list[str]:
    if conclusion is None:
        return []
    lines = []
    if conclusion.noise is not None:
        first = spec.judge.objectives[0].metric
        lines.append(f"noise: {first} of the defaults varies by {conclusion.noise:.1%} (one server, repeats)")
    for contender in conclusion.contenders:
        score = contender.score
        ratio = f"score {score.ratio:.3f}" if score else "no score"
        if score and score.low is not None and score.high is not None:
            ratio += f" [{score.low:.3f}, {score.high:.3f}]"
        metrics = ", ".join(f"{name} ×{value.ratio:.3f}" for name, value in contender.metrics.items())
        out = f" – out: {contender.disqualified}" if contender.disqualified else ""
        lines.append(f"finalist #{contender.number}: {ratio} of the defaults' ({metrics}){out}")
    lines.append(conclusion.reason)
    if conclusion.winner is not None:
        lines.append(text.result_line(conclusion.winner, records, spec.judge.objectives))
    return [*lines, *flag_effect_lines(conclusion.to_dict()["earned"], records)]


def _as_json(
    result: RunResult, spec: StudySpec, info: EngineInfo, records: list[TrialRecord], script: Path | None, logged: bool
) -> dict[str, Any]:
    return {
        "study": spec.name,
        "ending": result.ending.value,
        "converged": result.converged,
        "provenance": info.provenance.value,
        "engine": {"name": info.name, "version": info.version},
        "trials": len([record for record in records if not record.round]),
        **summary_facts(records),
        "conclusion": result.conclusion.to_dict() if result.conclusion else None,
        "reason": result.reason.message if result.reason else None,
        "script": os.fspath(script) if script else None,
        "mlflow_complete": logged,
    }
