"""The GPUs of the compared servers, and what is said about a reference that cannot be served."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from records.trials import Failure, FailureKind, Phase
from tests.fakes import install_fake_vllm
from tests.unit.test_gpu import FakeNvml
from tuner import gpu
from tuner.engines.base import EngineSettings
from tuner.errors import SettingError
from tuner.quality.examiner import ExamFailed, Variant
from tuner.specs import ModelRef
from tuner.study.specification.spec import ServerSettings
from tuner.use_cases import answers as quality
from tuner.use_cases.answers import QualitySettings, check_quality, check_reference

LOG = Path("tuner_study/quality/a3/server.log")


class Unserved:
    """An examiner whose servers do not start."""

    def __init__(self, failed: ExamFailed) -> None:
        self._failed = failed

    def answers(self, variant: Variant) -> None:
        """Fail."""
        raise self._failed


@pytest.mark.parametrize(
    ("kind", "message", "remedy"),
    [
        (FailureKind.OUT_OF_MEMORY_STARTUP, "CUDA out of memory", "give a model that fits by reference, or leave"),
        (FailureKind.ENGINE_CRASH, "No module named 'flashinfer'", "its log is tuner_study/quality/a3/server.log"),
    ],
)
def test_the_remedy_depends_on_why_the_reference_did_not_start(kind: FailureKind, message: str, remedy: str) -> None:
    failed = ExamFailed(message, Failure(kind, Phase.LAUNCH, message), LOG)
    variant = Variant(ModelRef("m", "m", "m"), (), {})
    with pytest.raises(SettingError) as raised:
        check_reference(Unserved(failed), variant, None)  # type: ignore[arg-type]
    assert f"it cannot be served: {message}; {remedy}" in str(raised.value)


class Stop(Exception):
    """Ends a comparison before its first server."""


def test_servers_of_two_gpus_get_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_pynvml", lambda: FakeNvml((("NVIDIA H200", (9, 0), 140.0),) * 2))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found: list[EngineSettings] = []

    def factory(settings: EngineSettings) -> None:
        found.append(settings)
        raise Stop

    monkeypatch.setattr(quality, "EngineFactory", factory)
    vllm, model = install_fake_vllm(tmp_path / "bin"), tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}", encoding="utf-8")
    server = ServerSettings(arguments=("-tp", "2"))
    storage = str(tmp_path / "tuner.db")
    asked = QualitySettings(str(model), None, None, "quality>=0.99", str(vllm), server, storage, 60.0)
    with pytest.raises(Stop):
        check_quality(asked, threading.Event())
    assert [each.gpus for each in found] == [2]
