"""The output of `tuner simulate`."""

from __future__ import annotations

import json

from tuner.cli.output.parts.console import new_table, show
from tuner.cli.output.parts.labelled import Rows, labelled
from tuner.engines.simulator.configured_server import ConfiguredServer
from tuner.results import text
from tuner.use_cases.preview.documents import simulation_document
from tuner.use_cases.simulate import Simulation
from tuner.workloads.file_notes import file_notes

SHOWN = (
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


def report(simulation: Simulation, *, as_json: bool) -> None:
    """Print a prediction."""
    if as_json:
        print(json.dumps(simulation_document(simulation), indent=1))
    else:
        _print(simulation)


def _print(simulation: Simulation) -> None:
    roof, machine = simulation.roofline, simulation.machine
    print(
        f"{text.BANNER}: {_servers(machine)}vLLM {simulation.vllm_version} serving {simulation.model} on "
        f"{'one' if machine.gpus == 1 else f'{machine.gpus} ×'} {simulation.card.name}\n"
        f"{simulation.completed} of {simulation.offered} requests completed"
    )
    print("".join(f"{line}\n" for line in file_notes(simulation.workload)))
    bands, table = machine.error_bands, new_table()
    for heading in ("metric", "predicted", *(("error of nine in ten recorded runs",) if bands.errors else ())):
        table.add_column(heading, justify="right" if heading == "predicted" else "left", no_wrap=True)
    for name in (*SHOWN, *(COSTS if simulation.price is not None else ())):
        band = bands.errors.get(name)
        value = text.with_unit(name, simulation.metrics.get(name))
        table.add_row(name, value, *([] if band is None else [f"within {band:.0%}"]))
    shares = ", ".join(f"{name} {share:.0%}" for name, share in simulation.time_shares.items())
    roofline = (
        f"{roof.intensity:.0f} FLOP per byte, below"
        if roof.intensity < roof.ridge
        else f"{roof.intensity:.0f} FLOP per byte, above"
    )
    rows = [
        *([] if bands.reason is None else [("errors", bands.reason)]),
        *([] if simulation.price is None else [("price", str(simulation.price))]),
        *_several(simulation),
        ("KV cache", f"{machine.budget.tokens:,} tokens" + (" for each copy" if simulation.copies > 1 else "")),
        ("preemptions", text.number(simulation.run.counts.preemptions)),
        ("attention backend", str(machine.config.backend)),
        ("time of a step", shares),
        ("roofline", f"{roofline} the ridge at {roof.ridge:.0f}: bound by {roof.roof}, {roof.share:.0%} of it reached"),
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
        ("per GPU", text.with_unit("output_throughput", simulation.output_throughput_per_gpu)),
        ("memory of a GPU", memory if machine.config.servers_per_gpu == 1 else f"for each server, {memory}"),
    ]
