"""What is said about a reference that cannot be served."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.failures import FailureKind
from storage.records import Failure, Phase
from tuner.errors import SettingError
from tuner.quality.examiner import ExamFailed, Variant
from tuner.specs import ModelRef
from tuner.use_cases.answers.quality import check_reference

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
