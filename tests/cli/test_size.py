"""`tuner size`: the predicted fleets of a small load, its files, its mistakes, and shapes that are measured."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from records.trials import Repeat
from tests.cli.command import CommandOutput, ran, refused, run_here
from tests.fakes import install_fake_vllm
from tests.fakes.stub_engine import StubEngine, StubServer
from tests.model_configs import CONFIG_7B, QWEN, write_folder
from tests.service_samples import SIZED_TRAFFIC
from tests.unit.test_gpu import FakeNvml
from tuner import gpu as devices
from tuner.cancellation import CancelToken
from tuner.engines.base import EngineSettings
from tuner.gpu import usable_cores
from tuner.specs import Limits, TrialSpec
from tuner.use_cases import capacity as capacity_run
from tuner.use_cases import engines
from tuner.workloads.spec import Workload
from tuner.workloads.traffic import Traffic

MODEL = ("--model", "Qwen/Qwen2.5-7B-Instruct", "--workload", "traffic.yaml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "traffic.yaml").write_text(SIZED_TRAFFIC)
    return tmp_path


LONGEST_S = 120.0
"""A busy machine imports the command in much less."""


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.skipif(usable_cores() < 2, reason="one processor predicts all cards in one process")
def test_nothing_is_left_after_the_command_is_killed(folder: Path) -> None:
    words = [sys.executable, "-m", "tuner.cli.main", "size", *MODEL, "--rate", "100", "--gpu", "l4", "--gpu", "l40s"]
    command = psutil.Process(subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL).pid)
    until(lambda: len(command.children()) == 2)
    children = command.children()
    command.kill()
    until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))


def test_fleets_are_predicted_for_each_card_and_shape(folder: Path) -> None:
    printed = ran(folder, "size", *MODEL, "--gpu", "l4", "--gpu", "h100", "--price", "h100=2", "--most-gpus", "2")
    assert printed.out.startswith("SIMULATED: predicted, not measured, in ")
    found = json.loads((folder / "tuner_size" / "size.json").read_text())
    shapes = {(each["card"], each["shape"]): each for each in found["shapes"]}
    h100 = shapes["h100", "one GPU"]
    assert h100["fleet"]["servers"] == 2  # one holds 8 requests/s, and one may fail
    assert h100["fleet"]["cost_per_month"] == pytest.approx(2 * 2.0 * 730)
    assert {name for card, name in shapes if card == "h100"} == {"one GPU"}  # two GPUs would only cost more
    l4 = shapes["l4", "one GPU"]
    assert l4["fleet"]["servers"] >= 3
    assert l4["pessimistic_servers"] >= l4["fleet"]["servers"]
    assert l4["pessimistic_rate"] < l4["rate"]
    assert "tensor parallel 2" in {name for card, name in shapes if card == "l4"}
    costs = [each["fleet"]["cost_per_month"] for each in found["shapes"] if each["fleet"]]
    assert costs == sorted(costs)
    assert {each["origin"] for each in found["shapes"]} == {"predicted"}
    assert "cost-against-latency" not in (folder / "tuner_size" / "size.html").read_text()
    assert "Simulated, not measured" in (folder / "tuner_size" / "size.html").read_text()


@pytest.mark.slow
def test_the_rate_that_an_h200_held_lies_between_the_pessimistic_and_the_predicted_one(folder: Path) -> None:
    """Measured: docs/reports/2026-11-29-h200-sizing.md. One API server is the limit, so that two hold more."""
    traffic = str(Path(__file__).parents[2] / "docs" / "examples" / "traffic.yaml")
    words = ("--model", MODEL[1], "--workload", traffic, "--rate", "100", "--gpu", "h200", "--most-gpus", "1")
    versions = ("--vllm-version", "0.25.1", "--keep-answers")
    rates = {}
    for name, given in (("one", ("--", "--api-server-count", "1")), ("chosen", ())):
        ran(folder, "size", *words, *versions, *given)
        (rates[name],) = json.loads((folder / "tuner_size" / "size.json").read_text())["shapes"]
    assert rates["one"]["pessimistic_rate"] < 96.5 < rates["one"]["rate"] < 1.25 * 96.5
    assert rates["chosen"]["recipes"] == ["api-servers-2", "graphs-of-prompts"]
    assert rates["chosen"]["rate"] > 1.2 * rates["one"]["rate"]


def test_a_card_that_does_not_hold_the_model_says_how_many_do(folder: Path) -> None:
    words = ("--model", "Qwen/Qwen2.5-32B-Instruct", "--workload", "traffic.yaml", "--keep-answers", "--most-gpus", "4")
    printed = run_here(folder, "size", *words, "--gpu", "l40s", "--rate", "0.5")
    assert "- l40s: 1 GPU does not hold the model; 2 do, tensor parallel 2" in printed.out, printed.out


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--price", "3"], "--price '3': the form is CARD=NUMBER"),
        (["--price", "h100=cheap"], "--price 'h100=cheap': 'cheap' is not a number"),
        (["--gpu", "l4", "--price", "h100=2"], "--price 'h100=2': no card of this name is compared: l4"),
        (["--price", "h100=0"], "--price 0: a price is from"),
        (["--gpu", "abacus"], "--gpu 'abacus': no known hardware"),
        (["--gpu", "cpu"], "--gpu 'cpu': this is no GPU"),
        (["--preset", "qwen2.5-0.5b-t4"], "a closed loop has users and no request rate"),
        (["--confirm", "1", "--gpu", "l4"], "--confirm 1: this machine has no GPU"),
        (["--slo", "p99_ttft_ms>5"], "p99_ttft_ms is better when lower"),
        (["--model", "nobody/nothing"], "--model 'nobody/nothing'"),
        (["--", "--tensor-parallel-size", "2"], "leave out the flags of parallelism"),
        (["--workload", "absent.yaml"], "absent.yaml"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], part: str) -> None:
    monkeypatch.setattr(devices, "devices", lambda: [])
    refused(run_here(tmp_path, "size", *argv), tmp_path, part)


@pytest.mark.parametrize("argv", [["--headroom", "-1"], ["--spares", "-1"], ["--most-gpus", "9"], ["--confirm", "x"]])
def test_values_out_of_range_are_refused(tmp_path: Path, argv: list[str]) -> None:
    refused(run_here(tmp_path, "size", *argv), tmp_path, argv[0])


def test_a_file_is_no_folder_for_the_page(folder: Path) -> None:
    printed = run_here(folder, "size", *MODEL, "-o", "traffic.yaml")
    assert (printed.code, printed.err.strip()) == (2, "tuner: -o 'traffic.yaml': this is a file; give a folder")


class HoldsNineTenths(StubServer):
    """A server that holds nine tenths of the first rate that any gets."""

    first: float | None = None
    broken = False

    def benchmark(self, workload: Workload, index: int, cancelled: CancelToken) -> Repeat:
        assert isinstance(workload, Traffic)
        assert workload.rate is not None
        assert workload.duration_s is not None
        assert workload.duration_s >= 20.0
        if HoldsNineTenths.first is None:
            HoldsNineTenths.first = workload.rate
        met = workload.rate <= 0.9 * HoldsNineTenths.first
        metrics = {"a.p95_ttft_ms": 50.0 if met else 5000.0, "a.p95_tpot_ms": 10.0}
        return Repeat(index, workload.repeat_seed(index), 10, 10, 0, 1.0, metrics)


@pytest.fixture
def confirmed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> CommandOutput:
    """The output where one of the shapes is measured on two L4."""
    specs: list[TrialSpec] = []

    class Engine(StubEngine):
        def launch(self, spec: TrialSpec, limits: Limits) -> StubServer:
            specs.append(spec)
            return HoldsNineTenths(spec, lambda *_: {}, None)

    def factory(settings: EngineSettings) -> object:
        return lambda slot: Engine(lambda *_: {})

    monkeypatch.setattr(devices, "_pynvml", lambda: FakeNvml((("NVIDIA L4", (8, 9), 22.0),) * 2))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(capacity_run, "EngineFactory", factory)
    monkeypatch.setattr(engines, "check_prompts", lambda *_: None)  # no prompt is made
    monkeypatch.setattr(HoldsNineTenths, "first", None)
    vllm = str(install_fake_vllm(folder / "bin"))
    write_folder(folder / "model", {**CONFIG_7B, **QWEN})
    load = ("--model", "model", "--workload", "traffic.yaml", "--gpu", "l4", "--vllm", vllm)
    return run_here(
        folder, "size", *load, "--most-gpus", "2", "--confirm", "1", "--json", "--", "--max-model-len", "4096"
    )


def test_a_measured_shape_corrects_the_others(confirmed: CommandOutput, folder: Path) -> None:
    assert confirmed.code == 0, confirmed.err
    found = json.loads(confirmed.out)
    ratio = found["measured_by_predicted"]
    # the first rate missed, its half held; then 0.707 and 0.841 held, 0.917 missed, and 0.917 / 0.841 is below 1.1
    assert ratio == pytest.approx(0.5**0.25, rel=1e-6)
    for each in found["shapes"]:
        if each["rate"] is not None:
            assert each["rate"] == pytest.approx(each["predicted_rate"] * ratio)
    origins = sorted(each["origin"] for each in found["shapes"] if each["rate"] is not None)
    assert origins.count("measured") == 1
    assert set(origins) == {"corrected", "measured"}
    measured = next(each for each in found["shapes"] if each["origin"] == "measured")
    assert measured["card"] == "l4"
    assert measured["pessimistic_servers"] is None
    assert measured["note"].startswith(f"held {measured['rate']:.4g} requests/s and missed at ")
    folders = [path.name for path in (folder / "tuner_size").iterdir() if path.is_dir()]
    assert folders == [f"l4-{measured['shape'].replace(' ', '-')}"]
    assert "Simulated, not measured" not in (folder / "tuner_size" / "size.html").read_text()
