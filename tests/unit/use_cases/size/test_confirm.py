"""What measured shapes do to a sizing, from outcomes that are made by hand."""

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from records.trials import Failure, FailureKind, Phase, Provenance, Repeat, TrialOutcome
from search_spaces import hardware_named
from tests.some import some
from tests.unit.use_cases.size.test_page import SIZING
from tuner.errors import SettingError
from tuner.settings.study import StudySettings
from tuner.use_cases.capacity import CapacityObserver, CapacityResult
from tuner.use_cases.size import confirm as confirmation
from tuner.use_cases.size.confirm import confirm, confirmable
from tuner.use_cases.size.sizing import Origin, Sizing
from tuner.workloads.traffic import Traffic, load_traffic

BEGUN = datetime(2026, 11, 28, tzinfo=UTC)
RATES = "rate,held\n60,True\n66,False\n"


class Observer:
    """An observer that hears nothing."""

    def opened(self, *_: object) -> None:
        """The search begins."""

    def phase(self, _: Phase) -> None:
        """A phase begins."""


def measured(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *rates: float | None, failure: Failure | None = None
) -> tuple[Sizing, list[StudySettings]]:
    """Return the sizing of `test_page` after capacity searches that found these rates; 0: a failure."""
    given: list[StudySettings] = []
    left = list(rates)

    def search(settings: StudySettings, observer: CapacityObserver, stop: threading.Event) -> CapacityResult:
        given.append(settings)
        rate, own = left.pop(0), Path(settings.output) / "1"
        own.mkdir()
        (own / "capacity.csv").write_text(RATES)
        repeats = (Repeat(0, 0, 10, 10, 0, 1.0, {"capacity": rate}),) if rate != 0 else ()
        outcome = TrialOutcome(BEGUN, BEGUN, Provenance.MEASURED, "w0", "H100", {}, str(own), repeats=repeats)
        if rate == 0:
            outcome = TrialOutcome(BEGUN, BEGUN, Provenance.MEASURED, "w0", "H100", {}, str(own), failure=failure)
        return CapacityResult(outcome, SIZING.slos, own)

    monkeypatch.setattr(confirmation, "search_capacity", search)
    chosen = [each for each in SIZING.shapes if each.fleet is not None][: len(rates)]
    return confirm(SIZING, chosen, folder, Observer(), threading.Event()), given


def test_a_measured_rate_replaces_its_prediction_and_corrects_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, _ = measured(monkeypatch, tmp_path, 48.0)  # 60 were predicted
    by_name = {each.name: each for each in found.shapes}
    assert found.ratio == pytest.approx(0.8)
    h100, l4 = by_name["h100 one GPU"], by_name["l4 tensor parallel 2"]
    assert (h100.origin, some(h100.fleet).servers) == (Origin.MEASURED, 4)  # three hold 100, and one may fail
    assert h100.rate == pytest.approx(48.0)
    assert h100.pessimistic is None
    assert h100.note.startswith("held 48 requests/s and missed at 66, predicted 60; ")
    assert l4.origin is Origin.CORRECTED
    assert l4.rate == pytest.approx(8.0)
    assert (some(l4.fleet).servers, some(l4.pessimistic).servers) == (15, 30)  # 120 / 8 and 120 / 4
    assert by_name["l4 one GPU"].rate is None


def test_two_measured_shapes_correct_by_their_geometric_mean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, _ = measured(monkeypatch, tmp_path, 30.0, 20.0)  # 0.5 and 2 of the predictions
    assert found.ratio == pytest.approx(1.0)


def test_a_failed_measurement_keeps_the_prediction_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failure = Failure(FailureKind.OUT_OF_MEMORY_STARTUP, Phase.READY, "no memory")
    found, _ = measured(monkeypatch, tmp_path, 0, failure=failure)
    first = found.shapes[0]
    assert (found.ratio, first.origin, first.rate) == (None, Origin.PREDICTED, 60.0)
    assert first.note.startswith("not measured: out_of_memory_startup: no memory; logs: ")


def test_a_shape_that_holds_no_rate_has_no_fleet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, _ = measured(monkeypatch, tmp_path, None)
    h100 = next(each for each in found.shapes if each.card.key == "h100")
    assert (h100.origin, h100.rate, h100.fleet) == (Origin.MEASURED, None, None)
    assert some(found.cheapest).name == "l4 tensor parallel 2"


def test_a_search_sends_the_traffic_of_the_predictions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, given = measured(monkeypatch, tmp_path, 48.0, 9.0)
    first, second = given
    load = load_traffic(Path(first.files[0]))
    assert isinstance(load, Traffic)
    assert (load.rate, load.duration_s, load.requests) == (60.0, 20.0, None)
    assert json.loads(Path(first.files[0]).read_text())["classes"]["a"]["input"] is not None
    assert (first.engine, first.objective, first.slo) == ("vllm", ("capacity",), ("a.p95_ttft_ms<1000",))
    assert (first.server_arguments, first.gpus_per_trial) == ((), 1)
    assert (second.server_arguments, second.gpus_per_trial) == (("--tensor-parallel-size", "2"), 2)


@pytest.mark.parametrize(("gpus", "names"), [(1, []), (2, ["l4 tensor parallel 2"])])
def test_only_what_this_machine_has_is_measured(monkeypatch: pytest.MonkeyPatch, gpus: int, names: list[str]) -> None:
    cards = [hardware_named("l4")] * gpus
    monkeypatch.setattr(confirmation, "_profiles", lambda: cards)
    asked = replace(SIZING, settings=replace(SIZING.settings, confirm=2))
    if not names:
        with pytest.raises(SettingError, match="this machine has NVIDIA L4, and no shape"):
            confirmable(asked)
        return
    assert [each.name for each in confirmable(asked)] == names
