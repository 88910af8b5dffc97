"""What a study expects of the day after, as a file."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from records.trials import Provenance
from search_spaces import hardware_named
from tests.fakes.stub_engine import StubEngine
from tuner.engines.base import EngineInfo
from tuner.errors import SettingError, UserError
from tuner.export.references import Reference
from tuner.scoring.change import Promise
from tuner.use_cases.devices import Devices
from tuner.use_cases.recheck import today
from tuner.use_cases.recheck.expected import Again, Expected, Setup, read_expected, write_expected
from tuner.workloads.spec import ClosedLoop
from tuner.workloads.traffic import load_traffic

EXPECTED = Expected(
    study="mine",
    provenance=Provenance.MEASURED,
    engine="vllm",
    version="0.31.0",
    device="NVIDIA L4",
    served_name="m",
    tokenizer="m",
    workload=ClosedLoop(max_concurrency=4, num_prompts=8),
    objectives=("output_throughput:40",),
    slos=("p99_ttft_ms<500", "quality>=0.99"),
    winner=Setup("trial 7", "m", ("--max-num-seqs", "64"), {"HF_TOKEN": "${HF_TOKEN}"}),
    reference=Setup("the defaults", "m", ()),
    gain=Promise(1.2, 1.1, 1.3),
    metrics={"output_throughput": Reference(100.0, 90.0, 110.0)},
    drivers=("570.1",),
    again=Again((("preset", "p"), ("baseline", '{"max_num_seqs": 8}')), ("--max-model-len", "1024")),
)


def test_a_file_is_what_was_written_and_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret_value")
    file = tmp_path / "recheck.yaml"
    write_expected(file, EXPECTED)
    assert read_expected(file) == EXPECTED
    assert "hf_secret_value" not in file.read_text()


def test_the_files_of_the_load_stay_beside_it(tmp_path: Path) -> None:
    (tmp_path / "traffic.yaml").write_text(
        "arrivals: {process: constant, rate: 5}\nrequests: 3\nclasses: {c: {text: {file: p.txt}, output: 4}}"
    )
    (tmp_path / "p.txt").write_text("one prompt\nanother one\n")
    traffic = load_traffic(tmp_path / "traffic.yaml")
    (path,) = traffic.files()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    file = tmp_path / "recheck.yaml"
    write_expected(file, replace(EXPECTED, workload=traffic, files={str(path): digest}))
    assert str(tmp_path) not in file.read_text()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("recheck.yaml", "p.txt"):
        (tmp_path / name).rename(moved / name)
    assert read_expected(moved / "recheck.yaml").files == {str(moved / "p.txt"): digest}
    (moved / "p.txt").write_text("changed")
    with pytest.raises(SettingError, match=r"the load reads this file, which is not there as it was; restore it"):
        read_expected(moved / "recheck.yaml")


def test_the_goals_have_no_slo_on_quality() -> None:
    assert [str(slo) for slo in EXPECTED.goals.slos] == ["p99_ttft_ms<500"]


def installed(version: str, device: str = "NVIDIA L4", driver: str = "570.1") -> today.Installation:
    info = EngineInfo("vllm", version, None, frozenset({"--max-num-seqs"}), Provenance.MEASURED)
    devices = Devices((device,), hardware_named("l4"), gpus=True, drivers=(driver,))
    return today.Installation(StubEngine(lambda spec, index: None), info, devices)  # type: ignore[arg-type,return-value]


def test_what_changed_is_told() -> None:
    assert today.changes(EXPECTED, installed("0.31.0"), None) == ["vLLM 0.31.0 on NVIDIA L4, as in the study"]
    changed = today.changes(EXPECTED, installed("0.32.0", "NVIDIA H200", "580.2"), "new-weights")
    assert changed == [
        "vLLM: 0.31.0 -> 0.32.0",
        "device: NVIDIA L4 -> NVIDIA H200",
        "driver: 570.1 -> 580.2",
        "model: m -> new-weights",
    ]


def test_new_defaults_are_those_that_the_space_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"0.31.0": {"a": 1, "b": 2}, "0.32.0": {"a": 1, "b": 3, "c": 4}}
    monkeypatch.setattr(today, "_defaults", lambda expected, version, hardware: known[version])
    assert today.changes(EXPECTED, installed("0.32.0"), None)[-1] == "default of b: 2 -> 3"


def test_flags_of_two_installations() -> None:
    before = installed("0.31.0").info
    after = replace(before, flags=frozenset({"--new", "--no-new"}))
    assert today.flag_changes(before, after) == ["flags gone: --max-num-seqs", "flags new: --new"]
    assert today.flag_changes(before, replace(before, flags=None)) == []
    assert today.flag_changes(before, replace(before, flags=frozenset({"--max-num-seqs", "-s", "--no-max"}))) == []


def test_a_simulated_card_of_a_file_is_not_taken_for_another() -> None:
    study = replace(EXPECTED, provenance=Provenance.SIMULATED, device="Our Card")
    with pytest.raises(UserError, match=r"simulated Our Card, which a file described; tune again: .* gpu FILE$"):
        today.find_installation(study, None)


@pytest.mark.parametrize(
    ("device", "gpus"), [("NVIDIA H200", 1), ("2 × NVIDIA H200", 2), ("NVIDIA L40S", 1), ("NVIDIA A100-SXM4-80GB", 1)]
)
def test_a_simulated_study_is_rechecked_on_its_card(device: str, gpus: int) -> None:
    """`NVIDIA H20`, `NVIDIA L4` and `NVIDIA A10` are other cards, whose names begin these names."""
    winner = Setup("trial 7", "m", ())
    expected = replace(EXPECTED, provenance=Provenance.SIMULATED, device=device, gpus=gpus, winner=winner)
    found = today.find_installation(expected, None)
    found.engine.close()
    assert found.device == device


def test_a_secret_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(today, "chosen_engine", lambda settings: (None, None))
    with pytest.raises(UserError, match="need the variable HF_TOKEN, which is not set; set it: export HF_TOKEN=…"):
        today.find_installation(EXPECTED, None)


def test_the_command_that_tunes_again_names_settings_for_the_command_line() -> None:
    assert today.retune(EXPECTED, "0.32.0", ["a b.yaml"]) == (
        "tuner optimize {study} mine-0.32.0 {learn_from} mine {preset} p {baseline} '{\"max_num_seqs\": 8}' "
        "{workload} 'a b.yaml' -- --max-model-len 1024"
    )
