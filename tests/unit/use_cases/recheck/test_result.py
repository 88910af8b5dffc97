"""The result of a recheck as lines, JUnit XML and Markdown."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from records.trials import Provenance
from tuner.errors import EXIT_INCONCLUSIVE, EXIT_WORSE
from tuner.export.references import Check, Comparison
from tuner.scoring.change import Change, Promise
from tuner.scoring.compare import MeasuredRatio, Ratio
from tuner.use_cases.recheck.result import Judged, RecheckResult, junit, markdown

JUDGED = Judged(
    "trial 7",
    Ratio(1.2, 1.15, 1.25, 4),
    Promise(1.21, 1.1, 1.3),
    Change.HOLDS,
    {"output_throughput": MeasuredRatio(100.0, 120.0, 1.2, 1.15, 1.25, "4 rounds")},
)
RECORD = Comparison(
    ("a: measured 1", "SLO b: measured 2"),
    True,
    True,
    (Check("a", "WORSE", "a: measured 1"), Check("c", "inconclusive", "c: measured"), Check("SLO b", "holds", "SLO b")),
)
RESULT = RecheckResult(
    study="mine",
    provenance=Provenance.MEASURED,
    at=datetime(2026, 11, 28, tzinfo=UTC),
    versions=("0.32.0", "0.32.0"),
    device="cpu",
    reference="the defaults",
    told=("vLLM: 0.31.0 -> 0.32.0",),
    judged=(JUDGED,),
    record=None,
    verdict=Change.HOLDS,
    rounds=4,
    folder=Path("logs"),
    margin=0.03,
)


@pytest.mark.parametrize(
    ("verdict", "code"),
    [(Change.HOLDS, 0), (Change.BETTER, 0), (Change.WORSE, EXIT_WORSE), (Change.INCONCLUSIVE, EXIT_INCONCLUSIVE)],
)
def test_exit_codes(verdict: Change, code: int) -> None:
    assert replace(RESULT, verdict=verdict).exit_code == code


def test_the_lines_say_ratio_interval_promise_and_verdict() -> None:
    assert RESULT.lines() == [
        "mine: HOLDS after 4 rounds",
        "trial 7 relative to the defaults: score ×1.200 (95 % interval 1.150 to 1.250), expected 1.100 to 1.300: holds",
    ]
    simulated = replace(RESULT, provenance=Provenance.SIMULATED)
    assert simulated.lines()[0] == "mine: HOLDS (simulated) after 4 rounds"


def test_junit_has_a_case_for_each_verdict() -> None:
    suite = ET.fromstring(junit(replace(RESULT, record=RECORD, verdict=Change.WORSE)))
    assert [suite.get(name) for name in ("tests", "failures", "skipped", "errors")] == ["4", "1", "1", "0"]
    found = {case.get("name"): [child.tag for child in case] for case in suite}
    assert found == {
        "trial 7 / the defaults": ["system-out"],
        "a": ["failure"],
        "c": ["skipped"],
        "SLO b": ["system-out"],
    }


def test_what_a_log_holds_breaks_neither_xml_nor_a_table() -> None:
    hostile = "failed: \x1b[31m<script>|\x00"
    broken = Judged("trial 7", None, Promise(1.0, 1.0, 1.0), Change.WORSE, {}, hostile)
    result = replace(RESULT, judged=(broken,), verdict=Change.WORSE)
    (case,) = ET.fromstring(junit(result))
    (failure,) = case
    assert failure.get("message") == "trial 7: failed:  [31m<script>| : worse"
    assert "- trial 7: failed:  [31m&lt;script>\\| : worse" in markdown(result).splitlines()


def test_the_summary_has_what_changed_the_table_and_the_next_step() -> None:
    lines = markdown(RESULT, ["next: tuner recheck mine"]).splitlines()
    assert lines[0] == "### mine: holds"
    assert "- vLLM: 0.31.0 -&gt; 0.32.0" in lines or "- vLLM: 0.31.0 -> 0.32.0" in lines
    assert "- next: tuner recheck mine" in lines
    assert "| output_throughput | 100 tok/s | 120 tok/s | ×1.200 | 1.150 to 1.250 | 4 rounds |" in lines
