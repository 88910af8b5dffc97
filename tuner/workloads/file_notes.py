"""Lines about the files of a workload: the rate and the span of a trace, and entries that are left out."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.workloads.arrivals import TraceArrivals
from tuner.workloads.reading.texts import read_texts
from tuner.workloads.reading.traces import read_recording
from tuner.workloads.request_class import TextFile
from tuner.workloads.schedule import due_times
from tuner.workloads.spec import Workload
from tuner.workloads.suite import Suite
from tuner.workloads.traffic import Traffic


def file_notes(workload: Workload) -> list[str]:
    """Return a line for each trace whose times are sent, and for each file with entries that are left out."""
    loads = workload.loads.values() if isinstance(workload, Suite) else [workload]
    return list(dict.fromkeys(line for load in loads if isinstance(load, Traffic) for line in _notes(load)))


def _notes(traffic: Traffic) -> Iterator[str]:
    if isinstance(traffic.arrivals, TraceArrivals):
        times = due_times(traffic)
        span, speed = (times[-1] or 0.0) - (times[0] or 0.0), traffic.arrivals.speed
        rate = f", {(len(times) - 1) / span:.3g} requests/s" if span else ""
        faster = "" if speed == 1 else f" at speed {speed:g}"
        yield f"trace {traffic.arrivals.file.name}: {len(times)} requests in {span:.4g} s{rate}{faster}"
    for each in traffic.sent_classes.values():
        if each.trace is not None:
            recording = read_recording(each.trace.file)
            yield from _left_out(recording.left_out, each.trace.file.name, "a prompt's or an answer's tokens")
        if isinstance(each.text, TextFile):
            yield from _left_out(read_texts(each.text.file).left_out, each.text.file.name, "text of a human")


def _left_out(count: int, name: str, what: str) -> Iterator[str]:
    if count:
        yield f"{name}: {count} {'entry' if count == 1 else 'entries'} without {what} left out"
