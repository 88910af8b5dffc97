"""The report's section on cards: measured points of recorded H200 runs, by hand, and why there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboards.report.page import Figure
from records.trials import Provenance
from tests.recorded import MIX, SEVEN_B, recorded_study
from tuner.use_cases.other_cards import measured_place
from tuner.use_cases.report.charts import cards_parts
from tuner.use_cases.report.page import origin_of, page_of

MIXED = "h200-mix-reduced.csv"


def test_the_recorded_defaults_by_hand() -> None:
    """The defaults of the search of the mix on an H200: row 0 of `h200-mix-reduced.csv`.

    23.0279 requests a second have 3,062.14 output and 22,509.76 input tokens, 44.058 % of these cached, a TTFT of
    48.0 ms and an E2EL of 1,064.1 ms. So 3,039.1 tokens a second are decoded by a batch of 23.0279 x 1.01611 = 23.4,
    in 129.9 steps, each with a context of (22,509.76 + 1,531.07) / 23.0279 = 1,044 tokens.

    Qwen2.5-7B has 28 layers of 233,046,016 parameters, a head of 544,997,376, attention of 4 x 28 x 128 x 28 = 401,408
    FLOP a pair, and a cache of 2 x 28 x 4 x 128 x 2 = 57,344 bytes a token:
    FLOP/s  = 13.05e9 x 15,632 + 1.090e9 x 3,062 + 401,408 x (8.87e6 + 3.17e6) = 212e12
    bytes/s = 14.14e9 x 129.9 + 57,344 x 3.17e6 = 2.02e12, which is 105 FLOP a byte.
    """
    study = recorded_study(MIXED, MIX)
    defaults = study.findings.trial(0)
    assert defaults is not None
    assert defaults.outcome is not None
    point = measured_place(study.record, defaults.outcome)
    assert point.batch == pytest.approx(23.40, abs=0.01)
    assert point.context == pytest.approx(1044.0, abs=0.5)
    assert point.roofline is not None
    assert point.roofline.flops == pytest.approx(212.2e12, rel=2e-3)
    assert point.roofline.intensity == pytest.approx(105.1, rel=3e-3)
    assert point.roofline.roof == "memory"


def test_measured_points_stand_beside_the_predicted_ones() -> None:
    study = recorded_study(MIXED, MIX)
    figure = next(part for part in cards_parts(study, origin_of(study)) if isinstance(part, Figure))
    names = [str(trace.name).rpartition(":")[0] for trace in figure.figure.data[1:]]
    reference, winner = study.compared
    assert names == ["defaults, predicted", "winner, predicted", f"{reference}, measured", f"{winner}, measured"]
    assert figure.source.startswith("Predicted by the simulator for NVIDIA H200. Measured on NVIDIA H200, vLLM 0.25.1")
    assert f"{reference} decodes " in figure.note


def test_without_a_command_the_section_says_why() -> None:
    """The rows of `h200-7b.csv` have no command."""
    study = recorded_study("h200-7b.csv", SEVEN_B)
    sentences = [part for part in cards_parts(study, origin_of(study)) if isinstance(part, str)]
    assert sentences == [
        f"No measured point on the roofline for {name}: the trial has no command of a server."
        for name in study.compared
    ]


def test_an_unknown_device_has_a_reason() -> None:
    study = recorded_study(MIXED, MIX)
    on_cpu = replace(study, record=replace(study.record, facts={"devices": ["cpu"]}))
    reasons = {point.lacking for point in on_cpu.measured_points.values()}
    assert reasons == {"the peak and the bandwidth of its device are not known"}


def test_a_simulated_study_has_no_measured_point() -> None:
    study = recorded_study(MIXED, MIX)
    simulated = replace(study, record=replace(study.record, provenance=Provenance.SIMULATED))
    assert simulated.measured_points == {}


def test_every_figure_says_where_its_numbers_come_from() -> None:
    page = page_of(recorded_study(MIXED, MIX))
    figures = [part for section in page.sections for part in section.parts if isinstance(part, Figure)]
    assert len(figures) > 5
    assert [figure.title for figure in figures if not figure.source.startswith(("Measured on", "Predicted by"))] == []
