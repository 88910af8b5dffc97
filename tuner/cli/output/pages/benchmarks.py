"""The pages of the commands that run one configuration, such as `capacity`, `load`, `simulate` and `verify`."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any

from dashboards.frames import rate_frame
from records.trials import Phase, Provenance
from search_spaces.catalogue.describe import described
from tuner.cli.arguments import command
from tuner.cli.output.pages.classes import rates_table
from tuner.cli.output.parts import Rows, labelled, new_table, say, show
from tuner.cli.output.progress.lines import simulation_line
from tuner.cli.signals import stop_on_signals, terminated_like_interrupted
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.errors import EXIT_OURS, EXIT_WORSE
from tuner.results import text
from tuner.settings.study import AskedSettings, StudySettings
from tuner.use_cases.answers import QualityReport, check_quality
from tuner.use_cases.capacity import CapacityResult, search_capacity
from tuner.use_cases.drift import DriftSettings as DriftSettings
from tuner.use_cases.drift import Watched, watch_drift
from tuner.use_cases.load import LoadResult, send_load
from tuner.use_cases.load import LoadSettings as LoadSettings
from tuner.use_cases.preview import simulation_document
from tuner.use_cases.simulate import Simulation, simulate
from tuner.use_cases.stored import learned_on
from tuner.use_cases.verify import VerifySettings as VerifySettings
from tuner.use_cases.verify import verify
from tuner.workloads.schedule import file_notes
from tuner.workloads.spec import Suite


class CapacityProgress:
    """Writes what is simulated, and a line for each phase and each rate, on standard error."""

    def __init__(self) -> None:
        self._rates = 0

    def opened(self, engine: EngineInfo, hardware: str) -> None:
        if engine.provenance is Provenance.SIMULATED:
            say(simulation_line(engine, hardware))

    def phase(self, phase: Phase) -> None:
        self._rates += phase is Phase.BENCHMARK
        say(f"rate {self._rates} …" if phase is Phase.BENCHMARK else f"{phase} …")


def run_capacity(settings: StudySettings, *, as_json: bool) -> int:
    """Search a capacity, print it and return the exit code."""
    with stop_on_signals() as wishes:
        result = search_capacity(settings, CapacityProgress(), wishes.stop)
    outcome = result.outcome
    if outcome.failure is not None:
        say(f"failed: {outcome.failure.kind}: {outcome.failure.message}{result.advice}; logs are in {result.folder}")
        return EXIT_OURS
    if as_json:
        print(json.dumps(_document(result)))
        return 0
    show(rates_table(rate_frame(result.file)), "")
    slos = ", ".join(str(slo) for slo in result.slos)
    measured = [value for value in result.searches if value is not None]
    if len(measured) < len(result.searches):
        print(f"every rate that was tried missed an SLO: {slos}")
        return 0
    each = f" ({', '.join(text.number(value) for value in measured)})" if len(measured) > 1 else ""
    least = "at least " if result.is_lower_bound else ""
    found, requests = outcome.metric("capacity"), result.requests_per_arrival
    if found is not None and requests != 1.0:
        each += f", {text.number(found / requests)} arrivals/s of {requests:.3g} requests"
    print(f"capacity {least}{text.number(found)} req/s{each} ({outcome.provenance}): {slos}")
    return 0


def _document(result: CapacityResult) -> dict[str, object]:
    return {
        "capacity": result.outcome.metric("capacity"),
        "requests_per_arrival": result.requests_per_arrival,
        "searches": result.searches,
        "lower_bound": result.is_lower_bound,
        "provenance": str(result.outcome.provenance),
        "slos": [str(slo) for slo in result.slos],
        "folder": os.fspath(result.folder),
    }


LOAD_METRICS = (
    "success_rate",
    "goodput_share",
    "session_goodput_share",
    "p50_ttft_ms",
    "p95_ttft_ms",
    "p95_tpot_ms",
    "p95_itl_ms",
    "p99_itl_ms",
    "p95_e2el_ms",
)


def run_load(settings: LoadSettings, *, as_json: bool) -> int:
    """Send a load; print the measurements by class and whether each SLO holds, and return the exit code."""
    with terminated_like_interrupted():
        result = send_load(settings)
    if as_json:
        print(json.dumps(_load_document(result)))
    else:
        _print(result)
    return 0 if result.invalid is None and all(result.slos_met.values()) else EXIT_OURS


def _load_document(result: LoadResult) -> dict[str, object]:
    repeat = result.repeat
    counts = {"offered": repeat.offered, "completed": repeat.completed, "duration_s": repeat.duration_s}
    judged = {"slos": result.slos_met, "failures": result.failures, "invalid": result.invalid, "provenance": "measured"}
    return {**counts, "metrics": repeat.metrics, **judged}


def _print(result: LoadResult) -> None:
    repeat, traffic = result.repeat, result.traffic
    print(f"{repeat.completed} of {repeat.offered} requests completed (measured); records are in {result.folder}")
    for line in (*file_notes(traffic), *result.failures):
        print(line)
    loads = traffic.loads if isinstance(traffic, Suite) else ()
    table = new_table()
    table.add_column("metric", no_wrap=True)
    classes = ("", *(f"{name}." for name in (*loads, *traffic.sent_classes)))
    for prefix in classes:
        table.add_column(prefix.rstrip(".") or "all", justify="right", no_wrap=True)
    for metric in LOAD_METRICS:
        if metric == "session_goodput_share" and repeat.metrics.get(metric) is None:  # there are no sessions
            continue
        table.add_row(metric, *(text.number(repeat.metrics.get(f"{prefix}{metric}")) for prefix in classes))
    show(table)
    for slo in result.slos:
        verdict = "met" if result.slos_met[str(slo)] else "MISSED"
        print(f"SLO {slo} {verdict}: measured {text.number(repeat.metrics.get(slo.metric))}")
    if result.invalid is not None:
        print(f"INVALID: {result.invalid}")


def run_quality(settings: StudySettings, reference: str | None, slo: str, trial: int | None, *, as_json: bool) -> None:
    """Compare a configuration with the reference, and print the comparison."""
    with stop_on_signals() as wishes:
        result = check_quality(settings, reference, slo, trial, wishes.stop)
    if as_json:
        print(json.dumps(document(result), indent=1))
        return
    tripwire, pairs = result.quality.tripwire, result.quality.pairs
    print(f"candidate  {result.candidate.model.name} {' '.join(result.candidate.argv)}".rstrip())
    print(f"reference  {result.reference.model.name} {' '.join(result.reference.argv)}".rstrip())
    print(
        f"tokens     {100 * tripwire.agreement:.1f} % of {tripwire.positions:,} most likely tokens agree, "
        f"mean KL divergence {tripwire.kl:.4f} nats" + (": broken" if tripwire.broken else "")
    )
    if pairs is None:
        print("answers    not compared: give --quality-task FILE with questions and right answers")
    else:
        low, high = pairs.interval
        print(
            f"answers    {100 * pairs.candidate:.1f} % of {pairs.questions:,} right, reference "
            f"{100 * pairs.reference:.1f} %; {pairs.lost} lost, {pairs.gained} gained\n"
            f"quality    {pairs.quality:.3f} (95 % interval {low:.3f} to {high:.3f}), {result.slo}: "
            f"{pairs.verdict(result.slo.threshold)}"
        )
    print(f"time       {result.quality.seconds[0]:.0f} s candidate, {result.quality.seconds[1]:.0f} s reference, once")


def document(result: QualityReport) -> dict[str, Any]:
    tripwire, pairs = result.quality.tripwire, result.quality.pairs
    answers = None
    if pairs is not None:
        answers = {
            "questions": pairs.questions,
            "reference": pairs.reference,
            "candidate": pairs.candidate,
            "lost": pairs.lost,
            "gained": pairs.gained,
            "quality": pairs.quality,
            "interval": list(pairs.interval),
            "verdict": pairs.verdict(result.slo.threshold).value,
        }
    return {
        "model": result.candidate.model.name,
        "reference": result.reference.model.name,
        "flags": list(result.candidate.argv),
        "positions": tripwire.positions,
        "agreement": tripwire.agreement,
        "kl": tripwire.kl,
        "broken": tripwire.broken,
        "slo": str(result.slo),
        "answers": answers,
        "seconds": {"candidate": result.quality.seconds[0], "reference": result.quality.seconds[1]},
    }


PREDICTED_METRICS = (
    "output_throughput",
    "request_throughput",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "p99_itl_ms",
)
COSTS = ("cost_per_million_output_tokens", "cost_per_million_total_tokens")
"""Shown where there is a price."""


def print_prediction(
    settings: AskedSettings, *, noise: bool, instances: int, host: str | None, storage: str | None, as_json: bool
) -> None:
    """Print the prediction of one configuration; see `simulate` and `learned_on`."""
    simulation = simulate(settings, noise=noise, instances=instances, learned=partial(learned_on, storage, host))
    if as_json:
        print(json.dumps(simulation_document(simulation), indent=1))
    else:
        _simulate_print(simulation)


def _simulate_print(simulation: Simulation) -> None:
    roof, machine, counts = simulation.roofline, simulation.machine, simulation.run.counts
    print(
        f"{text.BANNER}: {_servers(machine)}vLLM {simulation.vllm_version} serving {simulation.model} on "
        f"{'one' if machine.gpus == 1 else f'{machine.gpus} ×'} {simulation.card.name}\n"
        f"{simulation.completed} of {simulation.offered} requests completed"
    )
    print("".join(f"{line}\n" for line in file_notes(simulation.workload)))
    bands, table = simulation.error_bands, new_table()
    runs = "recorded runs" if simulation.learned is None else "runs on this host"
    for heading in ("metric", "predicted", *((f"error of nine in ten {runs}",) if bands.errors else ())):
        table.add_column(heading, justify="right" if heading == "predicted" else "left", no_wrap=True)
    for name in (*PREDICTED_METRICS, *(COSTS if simulation.price is not None else ())):
        band = bands.errors.get(name)
        value = text.with_unit(name, simulation.metrics.get(name), simulation.price)
        table.add_row(name, value, *([] if band is None else [f"within {band:.0%}"]))
    shares = ", ".join(f"{name} {share:.0%}" for name, share in simulation.run.time_shares.items())
    side = "below" if roof.intensity < roof.ridge else "above"
    roofline = f"{roof.intensity:.0f} FLOP per byte, {side} the ridge at {roof.ridge:.0f}"
    rows = [
        *([] if simulation.learned is None else [("corrected by", text.learned(simulation.learned.to_dict()))]),
        *([] if bands.reason is None else [("errors", bands.reason)]),
        *([] if simulation.price is None else [("price", str(simulation.price))]),
        *_several(simulation),
        ("model", described(machine.config.model)),
        ("KV cache", f"{machine.budget.tokens:,} tokens" + (" for each copy" if simulation.copies > 1 else "")),
        *([("prefix cache", f"{hits:.0%} of the prompt tokens")] if (hits := counts.prefix_hit_rate) else []),
        ("preemptions", text.number(counts.preemptions)),
        ("attention backend", machine.config.backend),
        ("time of a step", shares),
        ("roofline", f"{roofline}: bound by {roof.roof}, {roof.share:.0%} of it reached"),
    ]
    show(table, "", labelled(rows))


def _servers(machine: ConfiguredServer) -> str:
    return "" if machine.instances == 1 else f"{machine.instances} servers of "


def _several(simulation: Simulation) -> Rows:
    """Return what one plain server on one GPU does not need: figures for each GPU, server and copy of the model."""
    machine, budget = simulation.machine, simulation.machine.budget
    parallel, copies = machine.config.parallel, simulation.copies
    if machine.gpus == copies == 1:
        return []
    names = ("tensor parallel", parallel.tensor), ("pipeline", parallel.pipeline), ("copies of the model", copies)
    memory = (
        f"weights {budget.weights_gib:.1f}, KV cache {budget.kv_gib:.1f}, activations {budget.activations_gib:.1f}, "
        f"graphs {budget.graphs_gib:.1f} of {simulation.card.memory_gib or 0.0:.1f} GiB"
    )
    return [
        ("GPUs", f"{machine.gpus}: " + ", ".join(f"{name} {count}" for name, count in names if count > 1)),
        ("per GPU", text.with_unit("output_throughput", simulation.output_throughput_per_gpu, None)),
        ("memory of a GPU", memory if machine.config.servers_per_gpu == 1 else f"for each server, {memory}"),
    ]


def run_verification(settings: VerifySettings) -> int:
    """Compare a server with its study, print the comparison and return the exit code."""
    with terminated_like_interrupted():
        found = verify(settings)
    if found.provenance is Provenance.SIMULATED:
        print(f"the numbers of study {found.study} are simulated: the server is compared with predictions")
    for line in (*found.comparison.lines, *found.unverified):
        print(line)
    for line in found.disturbed:
        say(line)
    return found.comparison.exit_code


def run_drift(settings: DriftSettings) -> int:
    """Print a line for each window of running servers; return `EXIT_WORSE` if something has drifted, else 0."""
    record, windows = watch_drift(settings)
    if record.provenance is Provenance.SIMULATED:
        print(f"the numbers of study {record.name} are simulated: the servers are compared with predictions")
    drifted = False
    with terminated_like_interrupted():
        for watched in windows:
            print(_watched_line(watched), flush=True)
            for each in watched.drifted:
                print(f"drifted: {each.text}")
            drifted = bool(watched.drifted)
    if not drifted:
        print("nothing has drifted")
        return 0
    print(f"next: `{command('recheck', record.name)}`, and tune again with this traffic if it no longer holds")
    return EXIT_WORSE


def _watched_line(watched: Watched) -> str:
    at = text.duration(watched.seconds)
    if watched.window is None:
        return f"{at}: no window, a server began anew or did not answer"
    window = watched.window
    cached = "" if window.sharing is None else f", {window.sharing:.0%} of the prompt tokens cached"
    return f"{at}: {window.requests / window.seconds:.3g} requests/s{cached}"
