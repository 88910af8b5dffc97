"""Error bands are those of left-out rows, by regime; all values are worked out by hand."""

from dataclasses import replace

import pytest

from benchmarks.simulator.bands import error_bands_of, merged
from benchmarks.simulator.rows import Row, h200_experts

ROWS = [replace(row, metrics={"output_throughput": 100.0}) for row in h200_experts()]
PLAIN = [row for row in ROWS if row.group in ("q01-defaults", "q04-eager", "q06-2048", "q10-seqs32")]
REGIME = ("h200", "experts", "16-bit")


def bands(rows: list[Row], error: float = 0.0) -> object:
    """Return the band of 16-bit experts for predictions of which one in three is wrong by this error."""
    predicted = [{"output_throughput": 100.0 * (1 + error * (place % 3 == 0))} for place in range(len(rows))]
    return error_bands_of(rows, predicted)[REGIME]


def test_nine_of_ten_rows_stay_below_a_band() -> None:
    expected = {"card": "h200", "layers": "experts", "weights": "16-bit", "rows": 15, "output_throughput": 0.25}
    assert bands(PLAIN, 0.25) == expected


@pytest.mark.parametrize("rows", [PLAIN[:9], [row for row in PLAIN if row.group != "q04-eager"] * 2])
def test_a_regime_needs_rows_and_configurations(rows: list[Row]) -> None:
    assert bands(rows) is None


def test_random_weights_that_choose_the_same_experts_and_several_gpus_do_not_count() -> None:
    found = error_bands_of(ROWS, [{}] * len(ROWS))
    fp8 = ("h200", "experts", "fp8")
    assert set(found) == {REGIME, fp8, ("h200", "experts and windows", "mxfp4"), ("h200", "windows", "16-bit")}
    band = found[fp8]
    assert band is not None
    assert band["rows"] == 16  # four loads of four servers with weights of normal scale


def test_the_bands_of_other_regimes_stay() -> None:
    dense = {"card": "h200", "layers": "dense", "weights": "16-bit", "rows": 49}
    old = {"card": "h200", "layers": "experts", "weights": "16-bit", "rows": 15}
    new = {**old, "rows": 20}
    assert merged([dense, old], {REGIME: new}) == [dense, new]
    assert merged([dense, old], {REGIME: None}) == [dense]
