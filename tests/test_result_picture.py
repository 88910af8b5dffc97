"""The script that draws the README's picture."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "result_picture.py"
INTERVAL = {"ratio": 1.03, "low": 1.0, "high": 1.07, "rounds": 3}


def test_it_draws_trials_and_finalists(tmp_path: Path) -> None:
    trials = [
        {"number": 0, "round": 0, "score": 1.0, "feasible": True},
        {"number": 1, "round": 0, "score": 0.4, "feasible": False},
        {"number": 2, "round": 0, "score": None, "feasible": False},
        {"number": 1, "round": 1, "score": 1.0, "feasible": True},
    ]
    best = {"winner": 1, "rounds": 3, "contenders": [{"number": 1, "score": INTERVAL}]}
    (tmp_path / "trials.json").write_text(json.dumps(trials))
    (tmp_path / "best.json").write_text(json.dumps(best))
    files = [tmp_path / name for name in ("trials.json", "best.json", "result.png")]
    subprocess.run([sys.executable, SCRIPT, *files], check=True)
    assert files[-1].read_bytes().startswith(b"\x89PNG")
