"""Files of tuned kernels: which ones a study misses, what their names say, and the program that makes one."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from records.trials import ServerFacts
from tuner.engines.vllm import toolbox
from tuner.errors import InfrastructureError, SettingError
from tuner.use_cases import kernels
from tuner.use_cases.kernels import tune_kernels, untuned_files
from tuner.use_cases.stored import StoredStudy

FILE = "E=128,N=768,device_name=NVIDIA_H200.json"
DENSE = {
    **{"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "vocab_size": 151936},
    **{"num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": 6144, "num_experts": 0},
    **{"max_position_embeddings": 40960},
}
CONFIG = {**DENSE, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def stored(model: Path, *missed: str | None) -> StoredStudy:
    servers = [None, *(ServerFacts(untuned_kernels=each) for each in missed)]
    trials = [SimpleNamespace(outcome=SimpleNamespace(server=each)) for each in servers]
    record: Any = SimpleNamespace(premise={"model": {"name": str(model)}}, facts={"executable": "/v/bin/vllm"})
    return StoredStudy(record, (SimpleNamespace(outcome=None), *trials))  # type: ignore[arg-type]


def test_a_study_misses_each_file_once_until_it_is_made(tmp_path: Path, home: Path) -> None:
    small = FILE.replace("768", "384")
    study = stored(tmp_path, f"{FILE}; {small}; N=4,K=2.json", None, FILE)
    assert untuned_files(study) == ([FILE, small], ["N=4,K=2.json"])
    folder = home / "vllm" / "kernels"
    folder.mkdir(parents=True)
    (folder / FILE).touch()
    assert untuned_files(study) == ([small], ["N=4,K=2.json"])


@pytest.mark.parametrize(
    ("file", "config", "expected"),
    [
        (FILE, CONFIG, {"experts": 128, "size": 768, "fp8": False, "block": None}),
        (
            "E=64,N=1408,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8.json",
            {"text_config": CONFIG},
            {"experts": 64, "size": 1408, "fp8": True, "block": None},
        ),
        (
            "E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json",
            CONFIG,
            {"experts": 256, "size": 256, "fp8": True, "block": [128, 128]},
        ),
    ],
)
def test_the_program_gets_the_shape(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, file: str, config: object, expected: dict[str, object]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    program = tmp_path / "program.py"
    program.write_text(f"import sys; open({str(tmp_path / 'got')!r}, 'w').write(sys.argv[1])")
    monkeypatch.setattr(kernels, "_PROGRAM", program)
    monkeypatch.setattr(toolbox, "find_executable", Path)
    monkeypatch.setattr(toolbox, "installation", lambda *_: SimpleNamespace(python=Path(sys.executable)))
    tune_kernels(stored(tmp_path), None, file)
    whole = {"file": file, "hidden": 2048, "top_k": 8, "folder": str(home / "vllm" / "kernels"), **expected}
    assert json.loads((tmp_path / "got").read_text()) == whole
    program.write_text("raise SystemExit('another card')")
    with pytest.raises(InfrastructureError, match="was not made"):
        tune_kernels(stored(tmp_path), None, file)


@pytest.mark.parametrize(
    ("file", "config", "message"),
    [
        ("N=4096,K=2048,device_name=H,dtype=fp8_w8a8,block_shape=[128,128].json", CONFIG, "only kernels of experts in"),
        ("E=8,N=4,device_name=H,dtype=int4_w4a16.json", CONFIG, "only kernels of experts in 16 bits or FP8"),
        (FILE, {**DENSE, "model_type": "qwen2"}, "it has no experts, whose kernels are tuned here"),
        (FILE, None, "no shape of that model is known"),
    ],
)
def test_what_cannot_be_tuned_is_named(tmp_path: Path, file: str, config: object, message: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SettingError, match=message):
        tune_kernels(stored(tmp_path), None, file)
