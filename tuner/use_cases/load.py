"""What `tuner load` does once its arguments are read."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import httpx

from storage import open_store
from storage.records import Repeat
from tuner.cli.output import text
from tuner.engines.vllm.environment import base_environment
from tuner.engines.vllm.executable import find_executable, installation
from tuner.engines.vllm.toolbox import Toolbox
from tuner.engines.vllm.traffic_load import GRACE_S, LoadFiles, read_load, start_load
from tuner.errors import EXIT_OURS, TrialFailed, TunerError, UserError
from tuner.scoring.slo import Slo, parse_slo
from tuner.study.resolve_workload import find_judge, find_workload
from tuner.use_cases.places import find_study, home, storage_url
from tuner.workloads.presets import load_preset
from tuner.workloads.spec import ClosedLoop, Workload, read_workload
from tuner.workloads.suite import Suite, merged
from tuner.workloads.traffic import Traffic

ASK_S = 10.0
SHOWN = ("success_rate", "goodput_share", "p50_ttft_ms", "p95_ttft_ms", "p95_tpot_ms", "p95_itl_ms", "p95_e2el_ms")


@dataclass(frozen=True)
class Asked:
    """What the user asked for."""

    url: str
    workload: str | None
    preset: str | None
    study: str | None
    rate: float | None
    slos: tuple[str, ...]
    model: str | None
    tokenizer: str | None
    seed: int
    limit_s: float
    vllm: str | None
    storage: str | None
    output: Path


def run(asked: Asked, as_json: bool) -> int:
    """Send the load, print what came of it, and return the exit code."""
    traffic, slos = _traffic(asked)
    traffic = traffic.model_copy(update={"seed": asked.seed})
    executable = find_executable(asked.vllm)
    model, root = _served(asked)
    if asked.output.exists() and not asked.output.is_dir():
        raise UserError(f"-o {str(asked.output)!r}: that is a file; give a folder")
    asked.output.mkdir(parents=True, exist_ok=True)
    tools = Toolbox(installation(executable, home()), home(), base_environment(os.environ))
    try:
        repeat, late = _send_all(asked, tools, traffic, model, asked.tokenizer or root)
    except TrialFailed as error:
        raise TunerError(f"the load gave no figures: {error.failure.message}") from None
    finally:
        tools.close()
    return _report(repeat, late, traffic, slos, asked.output, as_json)


def _send_all(
    asked: Asked, tools: Toolbox, traffic: Traffic | Suite, model: str, tokenizer: str
) -> tuple[Repeat, str | None]:
    """Send the load after its warm-up, or each of several; return the figures, and why they cannot count, if so."""
    parts = traffic.parts() if isinstance(traffic, Suite) else {"": traffic}
    found, reasons = [], []
    for place, (name, part) in enumerate(parts.items()):
        warm = part.warmup()
        if warm is not None:
            _send(asked, tools, warm, place, model, tokenizer)
        repeat, late = _send(asked, tools, part, place, model, tokenizer)
        found.append((name, repeat))
        reasons += [late] if late is not None else []
    return found[0][1] if isinstance(traffic, Traffic) else merged(0, found), "; ".join(reasons) or None


def _traffic(asked: Asked) -> tuple[Traffic | Suite, tuple[Slo, ...]]:
    given = [name for name in (asked.workload, asked.preset, asked.study) if name is not None]
    if len(given) != 1:
        raise UserError("give one of --workload, --preset and --study: the traffic to send")
    slos: tuple[str, ...] = asked.slos
    found: Workload
    if asked.study is not None:
        store = open_store(storage_url(asked.storage, create=False))
        premise = find_study(store, asked.study).premise
        store.close()
        found, known = read_workload(premise["workload"]), tuple(parse_slo(each) for each in slos or premise["slos"])
        if isinstance(found, Suite) and asked.rate is not None:
            raise UserError(
                f"--rate {asked.rate:g} is for one load, and study {asked.study!r} has several; leave it out"
            )
        if isinstance(found, Traffic) and asked.rate is not None:
            found = found.at_rate(asked.rate)
    else:
        preset = load_preset(asked.preset or "mixed")
        found = find_workload(preset, [asked.workload] if asked.workload else [], asked.rate, {})
        known = find_judge(preset, found, (), slos, own=asked.workload is None).slos
    if isinstance(found, ClosedLoop):
        raise UserError("that load is the closed loop of `vllm bench serve`; send it by that command")
    return found, known


def _served(asked: Asked) -> tuple[str, str]:
    """Return the model's name in requests, and where its tokenizer is, as the server says."""
    try:
        listed = httpx.get(f"{asked.url}/v1/models", timeout=ASK_S).json()["data"]
        first = next(each for each in listed if asked.model in (None, each["id"]))
    except StopIteration:
        served = ", ".join(each["id"] for each in listed) or "none"
        raise UserError(f"--model {asked.model!r}: the server at {asked.url} serves {served}") from None
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"--url {asked.url!r}: no server of OpenAI's API answers there ({error}); start one") from None
    return first["id"], first.get("root") or first["id"]


def _send(
    asked: Asked, tools: Toolbox, traffic: Traffic, index: int, model: str, tokenizer: str
) -> tuple[Repeat, str | None]:
    files = LoadFiles(asked.output.absolute(), f"requests-{index}")
    job = start_load(tools, traffic, index, files, f"{asked.url}/v1/completions", model, tokenizer, asked.limit_s)
    try:
        job.wait(asked.limit_s + GRACE_S)
    finally:
        job.cancel()
    return read_load(traffic, index, files)


def _report(
    repeat: Repeat, late: str | None, traffic: Traffic | Suite, slos: tuple[Slo, ...], output: Path, as_json: bool
) -> int:
    held = {str(slo): slo.met(repeat.metrics.get(slo.metric)) for slo in slos}
    code = 0 if late is None and all(held.values()) else EXIT_OURS
    if as_json:
        counts = {"offered": repeat.offered, "completed": repeat.completed, "duration_s": repeat.duration_s}
        print(
            json.dumps({**counts, "metrics": repeat.metrics, "slos": held, "invalid": late, "provenance": "measured"})
        )
        return code
    print(f"{repeat.completed} of {repeat.offered} requests completed (measured); a record of each is in {output}")
    width = 2 + max(10, *map(len, traffic.sent_classes))
    print(f"{'':<{width}}" + "".join(f"{name:>15}" for name in SHOWN))
    loads = traffic.loads if isinstance(traffic, Suite) else ()
    for name in ("", *(f"{kind}." for kind in (*loads, *traffic.sent_classes))):
        row = "".join(f"{text.number(repeat.metrics.get(f'{name}{metric}')):>15}" for metric in SHOWN)
        print(f"{name.rstrip('.') or 'all':<{width}}{row}")
    for slo in slos:
        verdict = "holds" if held[str(slo)] else "BROKEN"
        print(f"SLO {slo}: measured {text.number(repeat.metrics.get(slo.metric))}: {verdict}")
    if late is not None:
        print(f"INVALID: {late}")
    return code
