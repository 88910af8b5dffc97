"""The public API: a study from Python, what it returns, and the example of docs/examples."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import tuner
from records.trials import Provenance, TrialKind
from tests.cli.conftest import NoMlflow
from tuner.use_cases import optimize as optimize_run

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder of the test's own, without MLflow."""
    monkeypatch.setattr(optimize_run, "MlflowFollower", NoMlflow)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    return tmp_path


def test_importing_the_package_loads_no_library() -> None:
    code = "import sys, tuner; print(*{'optuna', 'numpy', 'sqlalchemy', 'pydantic', 'ray', 'mlflow'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_public_name_exists() -> None:
    for name in tuner.__all__:
        assert getattr(tuner, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tuner.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tuner", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert tuner.__version__ in done.stdout


def test_a_study_from_python_equals_what_is_loaded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tuner.optimize(
        study="mine",
        engine="simulated",
        gpu="t4",
        trials=3,
        num_prompts=40,
        max_concurrency=8,
        slo=["success_rate>=1"],
    )
    assert capsys.readouterr().out == ""
    searched = [each.number for each in study.trials if not each.round and each.kind is not TrialKind.REDUCED]
    assert searched == [0, 1, 2]
    conclusion, best = study.conclusion, study.best
    assert conclusion is not None
    assert best is not None
    assert best.number == conclusion["winner"]
    assert best.provenance is Provenance.SIMULATED
    assert best.confirmed
    assert best.is_defaults is (best.number == 0)
    assert best.is_defaults is (best.config == {})
    assert best.metrics["success_rate"] == 1.0
    loaded = tuner.load_study("mine")
    assert loaded.best == best
    frame = loaded.trials_dataframe()
    assert set(frame["provenance"]) == {"simulated"}
    assert len(frame) == len(study.trials)
    assert study.export("chosen.sh").read_text().startswith("#!")
    assert study.export("chosen.yaml", format="compose").read_text().startswith("# Simulated, not measured")
    with pytest.raises(tuner.SettingError, match="format='helm': the formats are script, command, "):
        study.export("chosen", format="helm")


def test_a_setting_that_cannot_work_is_named_by_its_keyword(folder: Path) -> None:
    with pytest.raises(tuner.SettingError, match="trials=0: at least 1 is needed") as caught:
        tuner.optimize(trials=0)
    assert (caught.value.field, caught.value.value) == ("trials", 0)
    with pytest.raises(tuner.SettingError, match="timeout=-1: a duration is longer than 0"):
        tuner.optimize(timeout=-1)
    with pytest.raises(tuner.SettingError, match="gpu='t5'"):
        tuner.optimize(engine="simulated", gpu="t5")
    assert not (folder / "tuner_study").exists()


def test_a_database_that_does_not_exist_is_the_callers_mistake(folder: Path) -> None:
    with pytest.raises(tuner.UserError, match="no database"):
        tuner.load_study("mine")


@pytest.mark.slow
def test_the_example_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "docs" / "examples" / "optimize.py"))
    printed = capsys.readouterr().out
    assert printed.startswith("example: ")
    assert "(simulated)" in printed
    assert (folder / "serve_example.sh").is_file()
