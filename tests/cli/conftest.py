"""A clean environment, a folder with a model's configuration, and a fake `vllm` that is whatever a test needs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.model_configs import SMALL_QWEN, write_folder
from tuner.engines.base import EngineSettings
from tuner.engines.factory import EngineFactory
from tuner.executors.base import InlineExecutor
from tuner.study.protocols import MlflowLacks
from tuner.use_cases import files
from tuner.use_cases import optimize as optimize_run


class NoMlflow:
    """A follower that logs nothing."""

    def __init__(self, *_: object) -> None:
        pass

    def nothing(self, *_: object) -> None:
        """Ignore an event."""

    opened = stage = started = finished = retried = note = tick = synced = close = nothing

    def wait(self, *_: object) -> MlflowLacks:
        """Return at once: every trial counts as logged."""
        return MlflowLacks.NOTHING


@contextmanager
def studies_alone() -> Iterator[None]:
    """Let studies in this process end without MLflow, which starts a process, and without their report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize_run, "MlflowFollower", NoMlflow)
        patch.setattr(files, "_report", lambda *_: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new home of the tuner, no hub, no variables of vLLM or MLflow, and no MLflow in this process."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_HOME", str(folder))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))  # a loaded machine is warned of
        patch.setenv("HF_HOME", str(folder / "hub"))
        patch.setattr(optimize_run, "MlflowFollower", NoMlflow)
        for name in ("TUNER_VLLM", "TUNER_DEBUG", "MLFLOW_TRACKING_URI", "HF_HUB_CACHE"):
            patch.delenv(name, raising=False)
        yield folder


@pytest.fixture(scope="module", autouse=True)
def report_of_a_study(home: Path) -> Iterator[None]:
    """No report at the end of a study in this process, a third of its time. A module that reads one overrides this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_report", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"), SMALL_QWEN)


def short_traffic(path: Path) -> None:
    """Write the traffic of docs/examples with a tenth of its requests."""
    example = Path(__file__).parents[2] / "docs" / "examples" / "traffic.yaml"
    path.write_text(example.read_text().replace("requests: 600 ", "requests: 60 "))


def inline(settings: EngineSettings, *_: object) -> InlineExecutor:
    """Return an executor of the settings' engine in threads of this process, without Ray."""
    return InlineExecutor(EngineFactory(settings))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder to run in, whose parent may have files."""
    made = tmp_path / "here"
    made.mkdir()
    return made


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same engine in threads of this process, without Ray."""
    monkeypatch.setattr(optimize_run, "_executor", inline)
