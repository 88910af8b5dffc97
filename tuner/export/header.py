"""Comments that open every exported file: what the numbers are, and where they come from."""

from __future__ import annotations

from collections.abc import Iterable

from storage.records import Provenance
from tuner.export.quoting import escape_unprintable
from tuner.export.serve_script import ServeScript


def header_rows(script: ServeScript) -> list[tuple[str, str]]:
    """Return labels with texts: study, verdict, numbers, SLOs, answers, flag effects, engine, hardware, date."""
    return [
        ("study", f"{script.study}, trial {script.trial}"),
        ("verdict", script.verdict),
        ("model", script.model),
        *((script.provenance.value, f"{label}: {value}") for label, value in script.numbers),
        *(("SLO", str(slo)) for slo in script.slos),
        *([] if script.answers is None else [("answers", script.answers)]),
        *(("missed", line) for line in script.missed),
        *(("flags", line) for line in script.flag_effects),
        (script.program.engine, script.vllm_version + (f" ({script.executable})" if script.executable else "")),
        ("GPU", script.device),
        *([("driver", " ".join(script.drivers))] if script.drivers else []),
        ("date", script.date.isoformat()),
    ]


def header_lines(script: ServeScript, title: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return the lines of a comment: warnings, a title and rows, each escaped to one line."""
    simulated = script.provenance is Provenance.SIMULATED
    warning = ["# Simulated, not measured: the numbers below are predictions of the simulator."] if simulated else []
    if script.missed:
        warning.append("# This server does NOT meet the SLOs of its study; the lines below say by how much.")
    lines = (f"# {escape_unprintable(f'{label:<10}{text}')}" for label, text in rows)
    return [*warning, f"# {escape_unprintable(title)}", "#", *lines]
