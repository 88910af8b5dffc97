"""The notebook for a free T4: what is stored in it, the commands of its cells, and a run on the simulated T4."""

import os
import re
import shlex
import sys
import zipfile
from contextlib import closing
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from records.trials import Provenance
from storage import open_store
from tests.pages import ROOT, commands_in, tuner_words
from tests.test_docs import parse
from tuner.workloads.presets import load_preset

NOTEBOOK = ROOT / "docs" / "notebooks" / "first_minute_t4.ipynb"
GPU = "gpu"
"""Tag of the cells that need a GPU, which are not run here."""

SETTINGS = {"ENGINE": "vllm", "TRIALS": "6", "REPOSITORY": "https://example.org/tuner.git", "study": "t4-default"}
"""Values of the variables in the cells' commands."""

STUDIES = {"t4-default": "qwen2.5-0.5b-t4", "t4-greedy": "qwen2.5-0.5b-t4-greedy"}


def read() -> NotebookNode:
    notebook: NotebookNode = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    return notebook


def code_cells() -> list[NotebookNode]:
    return [cell for cell in read().cells if cell.cell_type == "code"]


def commands(cell: NotebookNode) -> list[list[str]]:
    """Return the words of each command that a cell starts by `!`, with the values of its variables."""
    lines = re.findall(r"^\s*!(.*)$", cell.source.replace("\\\n", ""), re.MULTILINE)
    filled = [re.sub(r"\{(\w+)\}", lambda match: SETTINGS[match[1]], line) for line in lines]
    return [words for line in filled for words in commands_in(line.replace("||", ";"))]


def tuner_commands(cells: list[NotebookNode]) -> list[list[str]]:
    return [rest for cell in cells for words in commands(cell) if (rest := tuner_words(words)) is not None]


def test_the_notebook_is_valid_and_has_no_outputs() -> None:
    nbformat.validate(read())
    cells = code_cells()
    assert [cell.id for cell in cells if cell.outputs or cell.execution_count is not None] == []
    assert cells[0].metadata.tags == ["parameters"]


def test_no_cell_names_a_place_of_one_machine() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w.:/~])/(?:home|root|work|content|kaggle|tmp|usr|Users)\b", text) == []


def test_cells_that_need_a_gpu_are_marked() -> None:
    marked = [cell.id for cell in code_cells() if GPU in cell.metadata.get("tags", ())]
    assert marked == ["install-vllm"]


def test_every_command_parses() -> None:
    found = tuner_commands(code_cells())
    assert [words[0] for words in found] == [
        "--version",
        "doctor",
        "optimize",
        "study",
        "optimize",
        "study",
        "study",
    ]
    for words in found:
        parse(words)


def test_the_studies_are_the_default_and_the_greedy_preset() -> None:
    found = [words for words in tuner_commands(code_cells()) if words[0] == "optimize"]
    names = {words[words.index("--study") + 1]: words[words.index("--preset") + 1] for words in found}
    assert names == STUDIES
    assert [load_preset(preset).workload.temperature for preset in STUDIES.values()] == [None, 0.0]


def test_vllm_is_a_version_that_runs_on_a_t4() -> None:
    [cell] = [cell for cell in code_cells() if cell.id == "install-vllm"]
    words = [word for command in commands(cell) for word in command]
    assert "vllm==0.15.1" in words  # docs/simulator.md: later versions dropped the attention kernels of a T4
    assert shlex.split("arctic-inference==0.1.1") == [word for word in words if word.startswith("arctic")]


@pytest.mark.release
def test_the_notebook_runs_on_the_simulated_t4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "TUNER_NOTEBOOK_ENGINE": "simulated",
        "TUNER_NOTEBOOK_TRIALS": "3",
        "TUNER_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hub"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "run"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in ("TUNER_VLLM", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "notebook"
    folder.mkdir()
    ran = run(read(), folder)

    without = [cell.id for cell in ran.cells if cell.cell_type == "code" and cell.execution_count is None]
    assert without == ["install-vllm"]
    failed = [cell.id for cell in ran.cells for output in cell.get("outputs", ()) if output.output_type == "error"]
    assert failed == []
    with closing(open_store(f"sqlite:///{folder / 'tuner_study' / 'tuner.db'}")) as store:
        studies = {study.name: study for study in store.studies()}
    assert {*studies} == {*STUDIES}
    for name, study in studies.items():
        assert study.provenance is Provenance.SIMULATED
        assert study.conclusion is not None
        assert study.conclusion["winner"] is not None
        assert f"<h1>{name}</h1>" in (folder / f"{name}.html").read_text(encoding="utf-8")
        with zipfile.ZipFile(folder / f"{name}-bundle.zip") as bundle:
            assert {"report.html", "trials.csv", "hardware.json", "best_serve.sh"} <= {*bundle.namelist()}
    shown = [data for cell in ran.cells for data in html_of(cell)]
    assert [data.count("<iframe srcdoc=") for data in shown] == [1, 1]


def html_of(cell: NotebookNode) -> list[str]:
    return [output.data["text/html"] for output in cell.get("outputs", ()) if "text/html" in output.get("data", {})]


def run(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Run a notebook in a folder without the cells that need a GPU."""
    place = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, kernel_name="python3", timeout=900, skip_cells_with_tag=GPU, resources=place)
    return client.execute()
