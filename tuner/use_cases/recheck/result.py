"""The result of a recheck as lines, as a document, as JUnit XML and as Markdown, without a layout."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from records.tables import Grid, grid
from records.trials import Provenance
from search_spaces import Price
from tuner.confidence import INTERVAL
from tuner.errors import EXIT_INCONCLUSIVE, EXIT_WORSE
from tuner.export.references import INCONCLUSIVE_WORD, Comparison
from tuner.results import text
from tuner.results.text import printable
from tuner.scoring.change import Change, Promise
from tuner.scoring.compare import MeasuredRatio, Ratio

EXIT_CODES = {Change.WORSE: EXIT_WORSE, Change.INCONCLUSIVE: EXIT_INCONCLUSIVE}


@dataclass(frozen=True)
class Judged:
    """A server beside the first one.

    Attributes:
        name: of the server in texts.
        score: its score relative to the first one's; None without a common round.
        promised: what that should be.
        change: what became of the promise.
        metrics: each objective of both.
        fault: why it was not compared; None if it was.
    """

    name: str
    score: Ratio | None
    promised: Promise
    change: Change
    metrics: Mapping[str, MeasuredRatio] = field(default_factory=dict)
    fault: str | None = None


@dataclass(frozen=True)
class RecheckResult:
    """A recheck that ended.

    Attributes:
        study: that was rechecked.
        provenance: of the numbers.
        at: its end.
        versions: of the engine, for each server.
        device: of the servers.
        reference: name of the server that the others are compared with.
        told: what changed since the study.
        judged: the other servers.
        record: the winner beside the recorded metrics and SLOs; None where several installations are compared.
        verdict: the gravest of all.
        rounds: how many were run.
        folder: of the logs.
        margin: the smallest change that matters, as a share.
        disturbed: what disturbs the measurements here.
        price: of a GPU-hour; None: unknown.
        next_step: a command, in which `{name}` stands for an option; None where there is nothing to do.
    """

    study: str
    provenance: Provenance
    at: datetime
    versions: tuple[str, ...]
    device: str
    reference: str
    told: tuple[str, ...]
    judged: tuple[Judged, ...]
    record: Comparison | None
    verdict: Change
    rounds: int
    folder: Path
    margin: float
    disturbed: tuple[str, ...] = ()
    price: Price | None = None
    next_step: str | None = None

    @property
    def exit_code(self) -> int:
        """0 if the answer holds or is better, else the code of the verdict."""
        return EXIT_CODES.get(self.verdict, 0)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The result as plain JSON, as the database keeps it."""
        return {
            "study": self.study,
            "provenance": self.provenance.value,
            "at": self.at.isoformat(timespec="seconds"),
            "versions": list(self.versions),
            "device": self.device,
            "reference": self.reference,
            "told": list(self.told),
            "verdict": self.verdict.value,
            "rounds": self.rounds,
            "margin": self.margin,
            "servers": [{**asdict(each), "change": each.change.value} for each in self.judged],
            "record": None if self.record is None else list(self.record.lines),
            "disturbed": list(self.disturbed),
        }

    def lines(self) -> list[str]:
        """Return the verdict and its reasons."""
        measured = "" if self.provenance is Provenance.MEASURED else " (simulated)"
        found = [f"{self.study}: {self.verdict.upper()}{measured} after {text.count(self.rounds, 'round')}"]
        found += [judged_line(each, self.reference) for each in self.judged]
        if self.record is not None:
            found += [f"record: {line}" for line in self.record.lines]
        if self.record is not None and self.record.failed and all(e.change is not Change.WORSE for e in self.judged):
            found.append("the gain is not lost: the machine or the engine is slower, not the configuration")
        return found

    def tables(self) -> list[Grid]:
        """Return a table of the objectives for each server that was compared."""
        return [_table(self.reference, each, self.price) for each in self.judged if each.metrics]


def judged_line(judged: Judged, reference: str) -> str:
    """Return a server's score beside what was promised, and the verdict."""
    if judged.score is None:
        return f"{judged.name}: {judged.fault or 'not compared'}: {judged.change}"
    score, promised = vars(judged.score), vars(judged.promised)
    ends = text.interval(score)
    shown = f"{text.ratio(score)} ({INTERVAL} {ends})" if ends else f"{text.ratio(score)} (no interval)"
    expected = "equal" if promised["low"] == promised["high"] == 1 else f"{text.interval(promised)}"
    return f"{judged.name} relative to {reference}: score {shown}, expected {expected}: {judged.change}"


def _table(reference: str, judged: Judged, price: Price | None) -> Grid:
    found = grid("metric", reference, judged.name, "ratio", INTERVAL, "from", left=("metric", "from"))
    for name, each in judged.metrics.items():
        found.add(name, *text.compared(name, each, price, price), each.basis)
    return found


def markdown(result: RecheckResult, following: Sequence[str] = ()) -> str:
    """Return the summary of a recheck for the page of a CI run or a pull request, with lines that follow from it."""
    lines = [f"### {result.study}: {result.verdict}", ""]
    lines += [f"- {_escaped(line)}" for line in (*result.told, *result.lines()[1:], *following, *result.disturbed)]
    for table in result.tables():
        headings = [each.heading for each in table.columns]
        lines += ["", _row(headings), _row(["---"] * len(headings)), *(_row(row) for row in table.rows)]
    lines += ["", f"_Intervals: {INTERVAL}; a change within {result.margin:.0%} does not matter._"]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escaped, cells)) + " |"


def _escaped(line: str) -> str:
    return printable(line).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _change(verdict: str) -> Change:
    """Return a verdict of `compared` as one of a recheck."""
    if verdict.isupper():
        return Change.WORSE
    return Change.INCONCLUSIVE if verdict == INCONCLUSIVE_WORD else Change.HOLDS


def junit(result: RecheckResult) -> str:
    """Return the result as JUnit XML: one test case for each server, and one for each recorded metric and SLO.

    A verdict that is worse is a failure; one that is inconclusive is skipped, because nothing was found.
    """
    cases = [
        (f"{each.name} / {result.reference}", each.change, judged_line(each, result.reference))
        for each in result.judged
    ]
    for check in () if result.record is None else result.record.checks:
        cases.append((check.name, _change(check.verdict), check.line))
    suite = ET.Element(
        "testsuite", name=f"tuner recheck {result.study}", timestamp=result.at.isoformat(timespec="seconds")
    )
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(change is Change.WORSE for _, change, _ in cases)))
    suite.set("skipped", str(sum(change is Change.INCONCLUSIVE for _, change, _ in cases)))
    suite.set("errors", "0")
    for name, change, shown in cases:
        line = printable(shown)
        case = ET.SubElement(suite, "testcase", classname=f"tuner.{result.study}", name=printable(name))
        if change is Change.WORSE:
            ET.SubElement(case, "failure", message=line, type="worse")
        elif change is Change.INCONCLUSIVE:
            ET.SubElement(case, "skipped", message=line)
        else:
            ET.SubElement(case, "system-out").text = line
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
