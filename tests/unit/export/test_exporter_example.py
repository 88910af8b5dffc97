"""docs/examples/exporter.py writes the winner of a study, as docs/examples/exporter.md shows it."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from storage.store import open_store
from tests import store_samples as samples

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "examples"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with the study `quickstart`, whose trial 12 is the winner, and the study `open` without a winner."""
    path = tmp_path / "study.db"
    store = open_store(str(path))
    for name, conclusion in (("quickstart", {"winner": 12}), ("open", None)):
        premise = {"model": {"name": "Qwen/Qwen2.5-0.5B"}}
        store.create_study(dataclasses.replace(samples.study(name), premise=premise, conclusion=conclusion))
        config = {"max_num_seqs": 64, "dtype": None}
        store.add_trial(dataclasses.replace(samples.pending(12, study=name), config=config))
        store.begin_attempt(name, 12)
        verdict = dataclasses.replace(samples.verdict(), values={"output_throughput": 3332.25})
        store.finish_trial(name, 12, 0, samples.success(), verdict)
    store.close()
    return path


def run(database: Path, study: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "exporter.py"), str(database), study, str(database.parent / "out.yaml")]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def test_the_file_is_the_one_of_the_page(database: Path) -> None:
    done = run(database, "quickstart")
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.search(r"```yaml\n(.*?)```", (EXAMPLES / "exporter.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    assert (database.parent / "out.yaml").read_text(encoding="utf-8") == shown[1]


@pytest.mark.parametrize(
    ("study", "message"),
    [("open", "study 'open' has no winner yet"), ("other", "no study is called 'other'")],
)
def test_an_error_has_the_next_step(database: Path, study: str, message: str) -> None:
    done = run(database, study)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (database.parent / "out.yaml").exists()
