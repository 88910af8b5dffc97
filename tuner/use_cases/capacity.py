"""What `tuner capacity` does once its arguments are read: one trial without a study."""

from __future__ import annotations

import csv
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

from storage.records import Phase, TrialKind, TrialOutcome
from tuner.cli.output import text
from tuner.engines.base import Engine, EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.errors import EXIT_OURS, UserError
from tuner.processes.family import myself
from tuner.specs import LaunchSpec, TrialSpec
from tuner.study.builder import Draft, Request, draft, sampling
from tuner.trial.pipeline import run_trial
from tuner.use_cases.devices import Devices, find_devices
from tuner.use_cases.optimize import stop_on_signals
from tuner.use_cases.places import home


def run(request: Request, vllm: str | None, output: Path, as_json: bool) -> int:
    """Search the capacity of one configuration and print it; return the exit code."""
    from tuner.engines.vllm.executable import find_executable

    devices = find_devices(1)
    executable = os.fspath(find_executable(vllm))
    plan = draft(request, on_cpu=not devices.gpus)
    if output.exists() and not output.is_dir():
        raise UserError(f"-o {str(output)!r}: that is a file; give a folder")
    output = _fresh(output)
    engine = EngineFactory(EngineSettings("vllm", executable, home(), driver=myself()))(0)
    try:
        outcome = _search(engine, _trial(plan, output), devices)
    finally:
        engine.close()
    if outcome.failure is not None:
        _say(f"failed: {outcome.failure.kind}: {outcome.failure.message}; logs are in {output}")
        return EXIT_OURS
    _report(outcome, plan, output, as_json)
    return 0


def _fresh(output: Path) -> Path:
    """Return the first of the folders 1, 2, … within `output` that is not there: logs of two searches never mix."""
    return next(folder for number in itertools.count(1) if not (folder := output / str(number)).exists())


def _trial(plan: Draft, output: Path) -> TrialSpec:
    request = plan.request
    return TrialSpec(
        study=plan.name,
        number=0,
        round=0,
        attempt=1,
        kind=TrialKind.ENQUEUED,
        config={},
        launch=LaunchSpec(
            model=plan.model,
            argv=(),
            base_argv=(*sampling(plan.workload), *request.server_arguments),
            environment=dict(request.environment),
        ),
        workload=plan.workload,
        repeats=request.repeats,
        artifacts=output,
        limits=request.limits,
        promises=plan.judge.slos,
    )


def _search(engine: Engine, spec: TrialSpec, devices: Devices) -> TrialOutcome:
    loads = 0

    def told(phase: Phase) -> None:
        nonlocal loads
        loads += phase is Phase.BENCHMARK
        _say(f"rate {loads} …" if phase is Phase.BENCHMARK else f"{phase} …")

    with stop_on_signals() as stop:
        return run_trial(engine, spec, stop, worker="w0", device=devices.names[0], report=told)


def _report(outcome: TrialOutcome, plan: Draft, output: Path, as_json: bool) -> None:
    found = [repeat.metrics.get("capacity") for repeat in outcome.repeats]
    table = (output / "capacity.csv").read_text(encoding="utf-8")
    bounded = any(row["held"] == "False" for row in csv.DictReader(table.splitlines()))
    if as_json:
        shown: dict[str, Any] = {"capacity": outcome.metric("capacity"), "searches": found, "lower_bound": not bounded}
        shown |= {"provenance": str(outcome.provenance), "slos": [str(slo) for slo in plan.judge.slos]}
        print(json.dumps({**shown, "folder": os.fspath(output)}))
        return
    sys.stdout.write(table)
    slos = ", ".join(str(slo) for slo in plan.judge.slos)
    known = [value for value in found if value is not None]
    if len(known) < len(found):
        print(f"no rate that was tried held {slos}")
        return
    each = f" ({', '.join(text.number(value) for value in known)})" if len(known) > 1 else ""
    least = "" if bounded else "at least "
    print(f"capacity {least}{text.number(outcome.metric('capacity'))} req/s{each} ({outcome.provenance}): {slos}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
