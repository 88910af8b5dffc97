"""What a study says of its own measurements before they begin."""

from typing import Any

import pytest

from records.trials import Provenance
from tuner.engines.base import EngineInfo
from tuner.settings.study import StudySettings
from tuner.use_cases.optimize import _disturbances


class Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.parametrize(
    ("arguments", "provenance", "said"),
    [
        (("--load-format", "dummy"), Provenance.MEASURED, True),
        (("--load_format=dummy",), Provenance.MEASURED, True),
        (("--load-format", "auto"), Provenance.MEASURED, False),
        ((), Provenance.MEASURED, False),
        (("--load-format", "dummy"), Provenance.SIMULATED, False),
    ],
)
def test_random_weights_are_told(arguments: tuple[str, ...], provenance: Provenance, said: bool) -> None:
    notes: Any = Notes()
    settings = StudySettings(server_arguments=arguments, ray_address="ray")
    with _disturbances(settings, EngineInfo("vllm", "0.25.1", None, None, provenance), notes):
        pass
    assert [line.startswith("weights are random (--load-format dummy)") for line in notes.lines] == [True] * said


def test_variables_that_servers_do_not_inherit_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_USE_FLASHINFER_SAMPLER", "VLLM_LOGGING_LEVEL", "VLLM_API_KEY", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, "0")
    notes: Any = Notes()
    settings = StudySettings(env={"VLLM_LOGGING_LEVEL": "INFO"}, server_arguments=("--api-key", "${VLLM_API_KEY}"))
    with _disturbances(settings, EngineInfo("vllm", "0.25.1", None, None, Provenance.MEASURED), notes):
        pass
    told = [line for line in notes.lines if "this shell" in line]
    assert told == [
        "servers do not inherit VLLM_USE_FLASHINFER_SAMPLER from this shell; give variables in the study's `env`"
    ]
