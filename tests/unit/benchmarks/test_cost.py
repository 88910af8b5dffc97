"""The table of the tuner's own cost."""

from __future__ import annotations

import pytest

from benchmarks.overhead import CostFigure, print_figures


def test_own_costs_have_targets(capsys: pytest.CaptureFixture[str]) -> None:
    print_figures([CostFigure.over("ask", [1.0, 2.0, 3.0], "ms", 100.0), CostFigure("peak", 5.0, None, "MB", None, 1)])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[-2:]]
    assert rows == [["ask,", "ms", "2", "2.9", "≤", "100", "3"], ["peak,", "MB", "5", "1"]]
