"""The environment of a server, and its temporary files that outlive it."""

from pathlib import Path

import pytest

from tuner import scratch
from tuner.engines.server.devices import base_environment
from tuner.engines.vllm.toolbox import preserve_compiler_headers


def test_compiled_headers_outlive_a_trials_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "DOM\\user")
    temporary, home = tmp_path / "temporary", tmp_path / "home"
    temporary.mkdir()
    for _ in range(2):
        scratch.empty(temporary)
        preserve_compiler_headers(temporary, home)
        preserve_compiler_headers(temporary, home)
        assert [entry.name for entry in temporary.iterdir()] == ["torchinductor_DOM_user"]
        (temporary / "torchinductor_DOM_user" / "header.pch").touch()
        (temporary / "leftover").touch()
    assert [entry.name for entry in (home / "vllm" / "inductor-temporary").iterdir()] == ["header.pch"]
    scratch.remove(temporary)
    assert (home / "vllm" / "inductor-temporary" / "header.pch").exists()


def test_inherited_variables_of_vllm_are_dropped() -> None:
    inherited = {"PATH": "/bin", "VLLM_USE_V1": "1", "RAY_ADDRESS": "x", "HF_HOME": "/hf"}
    inherited |= {"PGPASSWORD": "p", "TUNER_WEBHOOK_TEAM": "https://hooks.example/T0"}
    assert base_environment(inherited) == {"PATH": "/bin", "HF_HOME": "/hf"}
