"""What a study says about answers that were compared."""

from __future__ import annotations

import pytest

from tuner.quality.compare import Pairs, Tripwire
from tuner.quality.examiner import Quality, fact_of, line_of
from tuner.scoring.goals import parse_slo

SLO = parse_slo("quality>=0.99")
TOKENS = "98.5 % of the most likely tokens agree, mean KL 0.0045 nats"


@pytest.mark.parametrize(
    ("tripwire", "pairs", "line"),
    [
        (
            Tripwire(194, 0.985, 0.0045),
            Pairs(both=1000, lost=0, gained=0, neither=0),
            f"kept for quality>=0.99 with fp8: quality 1.000 (95 % interval 0.996 to 1.004), 1000 questions; {TOKENS}",
        ),
        (
            Tripwire(194, 0.985, 0.0045),
            Pairs(both=50, lost=50, gained=0, neither=0),
            f"LOST for quality>=0.99 with fp8: quality 0.500 (95 % interval 0.385 to 0.680), 100 questions; {TOKENS}",
        ),
        (Tripwire(194, 0.985, 0.0045), None, f"compared without questions: with fp8, {TOKENS}"),
        (
            Tripwire(194, 0.5, 2.0),
            Pairs(both=1, lost=0, gained=0, neither=0),
            "BROKEN with fp8: 50.0 % of the most likely tokens agree, mean KL 2.0000 nats",
        ),
    ],
)
def test_one_line_says_what_was_found(tripwire: Tripwire, pairs: Pairs | None, line: str) -> None:
    assert line_of(fact_of(Quality(tripwire, pairs, (1.0, 1.0)), SLO), "fp8") == line
