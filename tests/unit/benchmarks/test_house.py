"""The script that counts what makes a checkout hard to read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "house.py"
FILES = {
    "tuner/cli/main.py": """
import typer
from typing import Annotated

Storage = Annotated[str, typer.Option(help="Database.")]

def optimize(trials: Annotated[int, typer.Option()], storage: Storage, model: Annotated[str, typer.Option("--model")]):
    import json
""",
    "tuner/engines/bench.py": 'WORDS = ["--model", "--max-num-seqs"]\n',
    "tuner/study/run.py": '''
"""Not counted: --trials."""
WORDS = 3

def check(name):
    raise ValueError(f"--trials {name}: not a number")

def other(name):
    return ["--model", name, f"--model {name!r} is missing", "--storage"]

def long():
    """Return nothing."""
'''
    + "    pass\n" * 40,
    "storage/store.py": "_private = 1\n",
    "records/trials.py": "_private = 2\n",
}


def test_each_measure_of_a_small_checkout(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for number in range(13):
        (tmp_path / "tuner" / "study" / f"part_{number}.py").write_text("")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), "--list"], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    rows = dict(line.strip("| ").split(" | ") for line in lines[2:] if line.startswith("| "))
    assert list(rows.values()) == ["18", "1", "1", "3", "1", "1", "1"]
    found = [line for line in lines if line.startswith("- ")]
    assert found == [
        "- WORDS: tuner/engines/bench.py, tuner/study/run.py",
        "- tuner/study: 14 files",
        "- tuner/study/run.py:6: --trials",
        "- tuner/study/run.py:9: --model",
        "- tuner/study/run.py:9: --storage",
        "- tuner/study/run.py:11: long, 41 lines",
        "- tuner/cli/main.py:8: import json",
    ]
