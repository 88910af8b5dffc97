"""`tuner compare` and `--baseline` on the command line, simulated, and what both refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import refused, run_here

FLAGS = ("optimize", "--engine", "simulated", "--prompts", "8", "--users", "4", "--trials", "2")


@pytest.fixture(scope="module")
def study(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of the defaults and a baseline with other batches and a prefix cache as by default."""
    tmp_path = tmp_path_factory.mktemp("compare")
    config = json.dumps({"max_num_seqs": 8, "prefix_caching": True})
    printed = run_here(tmp_path, *FLAGS, "--confirm-rounds", "0", "--baseline", config)
    assert printed.code == 0, printed.err
    return tmp_path


def test_two_trials_are_compared_metric_by_metric_with_the_flags_that_differ(study: Path) -> None:
    lines = run_here(study, "compare", "0", "1").out.splitlines()
    assert [line for line in lines if line.startswith("output_throughput") and "×" in line]
    assert lines[lines.index("flags that differ:") + 1 :] == ["  max_num_seqs: default -> 8"]
    found = json.loads(run_here(study, "compare", "0", "1", "--json").out)
    metric = found["metrics"]["output_throughput"]
    # The ratio is that of geometric means, the values are medians.
    assert metric["ratio"] == pytest.approx(metric["other"] / metric["one"], rel=0.03)
    assert found["flags"] == {"max_num_seqs": [None, 8]}


def test_several_trials_are_compared_with_the_first(study: Path) -> None:
    printed = run_here(study, "compare", "0", "1", "0").out
    lines = printed.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("output_throughput"))
    assert "×1.000" in lines[start + 1]
    assert lines[-2].split("#")[1] == "1: max_num_seqs: default -> 8"
    assert lines[-1].split("#")[1] == "0: none"
    found = json.loads(run_here(study, "compare", "0", "1", "0", "--json").out)
    alone = json.loads(run_here(study, "compare", "0", "1", "--json").out)
    assert [each["b"] for each in found["others"]] == ["1", "0"]
    assert found["others"][0]["metrics"] == alone["metrics"]


def test_a_trial_is_as_good_as_itself(study: Path) -> None:
    found = json.loads(run_here(study, "compare", "1", "1", "--json").out)
    assert {each["ratio"] for each in found["metrics"].values()} == {1.0}
    assert found["flags"] == {}


@pytest.mark.parametrize(
    ("sides", "parts"),
    [
        (("0", "99"), ("has no trial 99",)),
        (("nosuch", "1"), ("'nosuch'", "no study of this name")),
        (("0", "#x"), ("'#x' names no trial",)),
    ],
)
def test_a_side_that_is_not_there_is_refused_in_one_line(
    study: Path, sides: tuple[str, str], parts: tuple[str, ...]
) -> None:
    printed = run_here(study, "compare", *sides)
    assert (printed.code, printed.out, len(printed.err.splitlines())) == (2, "", 1)
    assert [part for part in parts if part not in printed.err] == [], printed.err


def test_the_baseline_is_what_the_study_compares_with(tmp_path: Path) -> None:
    printed = run_here(tmp_path, *FLAGS, "--confirm-rounds", "0", "--baseline", "--max-num-seqs 8")
    assert printed.code == 0, printed.err
    assert "baseline = max_num_seqs=8" in printed.err
    assert "keep the baseline" in printed.out


@pytest.mark.parametrize(
    ("baseline", "parts"),
    [
        ("nosuch", ("'nosuch'", "no configuration has this name", "eager")),
        ('{"max_num_seqs": "many"}', ("max_num_seqs cannot be 'many'",)),
        ("{bad", ("not valid JSON",)),
        ("--no-such-flag 3", ("--no-such-flag is no flag of the search space", "after `--`")),
    ],
)
def test_an_unknown_baseline_is_refused(tmp_path: Path, baseline: str, parts: tuple[str, ...]) -> None:
    refused(run_here(tmp_path, *FLAGS, "--baseline", baseline), tmp_path, *parts)
