"""`tuner study compare` and `tuner study show --pareto`."""

import csv
import io
import json
from pathlib import Path

import pytest

from tests.cli.command import one_line, ran, refused, run_here

FLAGS = ("optimize", "--engine", "simulated", "--prompts", "8", "--users", "4", "--trials", "2")


@pytest.fixture(scope="module")
def study(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of the defaults and a baseline with other batches and a prefix cache as by default."""
    tmp_path = tmp_path_factory.mktemp("compare")
    config = json.dumps({"max_num_seqs": 8, "prefix_caching": True})
    ran(tmp_path, *FLAGS, "--confirm-rounds", "0", "--baseline", config)
    return tmp_path


def test_two_trials_are_compared_metric_by_metric_with_the_flags_that_differ(study: Path) -> None:
    lines = run_here(study, "study", "compare", "0", "1").out.splitlines()
    assert [line for line in lines if line.startswith("output_throughput") and "×" in line]
    assert lines[lines.index("flags that differ:") + 1 :] == ["  max_num_seqs: default -> 8"]
    found = json.loads(run_here(study, "study", "compare", "0", "1", "--json").out)
    metric = found["metrics"]["output_throughput"]
    # The ratio is that of geometric means, the values are medians.
    assert metric["ratio"] == pytest.approx(metric["other"] / metric["one"], rel=0.03)
    assert found["flags"] == {"max_num_seqs": [None, 8]}


def test_several_trials_are_compared_with_the_first(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    printed = run_here(study, "study", "compare", "0", "1", "0").out
    lines = printed.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("output_throughput"))
    assert "×1.000" in lines[start + 1]
    assert lines[-2].split("#")[1] == "1: max_num_seqs: default -> 8"
    assert lines[-1].split("#")[1] == "0: none"
    found = json.loads(run_here(study, "study", "compare", "0", "1", "0", "--json").out)
    alone = json.loads(run_here(study, "study", "compare", "0", "1", "--json").out)
    assert [each["b"] for each in found["others"]] == ["1", "0"]
    assert found["others"][0]["metrics"] == alone["metrics"]


def test_a_trial_is_as_good_as_itself(study: Path) -> None:
    found = json.loads(run_here(study, "study", "compare", "1", "1", "--json").out)
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
    one_line(run_here(study, "study", "compare", *sides), *parts)


def test_the_baseline_is_what_the_study_compares_with(tmp_path: Path) -> None:
    printed = ran(tmp_path, *FLAGS, "--confirm-rounds", "0", "--baseline", "--max-num-seqs 8")
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


STUDY = ("optimize", "--engine", "simulated", "--prompts", "40", "--users", "20", "--plain", "--confirm-rounds", "2")
EASY = ("--slo", "success_rate>=1")
GIVEN = ('{"cudagraph_mode": "eager"}', '{"max_num_seqs": 12}')


@pytest.fixture(scope="module")
def front_study(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of the defaults, of a slower server, and of fewer sequences, which wait for longer."""
    tmp_path = tmp_path_factory.mktemp("front")
    words = [word for config in GIVEN for word in ("--enqueue", config)]
    ran(tmp_path, *STUDY, "--trials", "3", "--finalists", "2", *EASY, *words, "--study", "three")
    return tmp_path


def test_the_front_as_table_json_and_csv(front_study: Path) -> None:
    found = json.loads(run_here(front_study, "study", "show", "--pareto", "--json").out)
    numbers = [each["trial"] for each in found["front"]]
    assert 0 in numbers
    assert 1 not in numbers  # slower in every metric
    assert (found["reference"], found["provenance"]) == (0, "simulated")
    defaults = next(each for each in found["front"] if each["trial"] == 0)
    assert {each["ratio"] for each in defaults["metrics"].values()} == {1.0}
    rows = list(csv.DictReader(io.StringIO(run_here(front_study, "study", "show", "--pareto", "--csv").out)))
    assert [int(row["trial"]) for row in rows] == numbers
    assert {"output_throughput.ratio", "p99_tpot_ms.low", "configuration"} <= set(rows[0])
    lines = run_here(front_study, "study", "show", "--pareto").out.splitlines()
    assert lines[0] == "three (simulated): the front of output_throughput, p99_tpot_ms, p99_ttft_ms"
    assert [line for line in lines if line.startswith("#0 ")]


def test_a_single_objective_is_compared_with_the_metrics_of_the_slos(tmp_path: Path) -> None:
    words = (*STUDY, "--trials", "2", "--enqueue", GIVEN[1], "--objective", "output_throughput", "--study", "one")
    ran(tmp_path, *words, "--slo", "p99_ttft_ms<9000")
    assert "the front of output_throughput, p99_ttft_ms" in run_here(tmp_path, "study", "show", "--pareto").out
    ran(tmp_path, *words[:-1], "none", "--slo", "output_throughput>1")
    one_line(
        run_here(tmp_path, "study", "show", "none", "--pareto"),
        "a front needs two metrics, and output_throughput is one",
    )


def test_other_weights_choose_and_export_another_trial(front_study: Path) -> None:
    found = json.loads(run_here(front_study, "study", "show", "--objective", "p99_tpot_ms", "--json").out)
    assert found["trials"][0]["trial"] == 2  # fewer sequences have faster tokens
    assert found["objectives"] == ["p99_tpot_ms:20"]
    throughput = json.loads(run_here(front_study, "study", "show", "--objective", "output_throughput", "--json").out)
    assert throughput["trials"][0]["trial"] == 0
    printed = run_here(front_study, "study", "show", "--objective", "p99_tpot_ms").out
    assert printed.startswith("trial 2 is the best by p99_tpot_ms:20: score ")
    assert "tuner study export three --trial 2" in printed
    ran(front_study, "study", "export", "--trial", "2", "-o", "two.sh")
    assert "--max-num-seqs 12" in (front_study / "two.sh").read_text()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--objective", "speed"), ("--objective 'speed'", "no metric is called")),
        (("--objective", "p99_ttft_ms:x"), ("--objective 'p99_ttft_ms:x'", "the weight must be a number")),
        (("--objective", "p99_ttft_ms:1", "--objective", "p99_ttft_ms:2"), ("this metric is given twice",)),
        (("--objective", "capacity"), ("no trial of study 'three' has this metric",)),
        (("--pareto", "--objective", "p99_ttft_ms"), ("a front needs two metrics",)),
        (("--csv",), ("add --pareto",)),
        (("--pareto", "--csv", "--json"), ("exclude each other",)),
    ],
)
def test_mistakes_are_one_line(front_study: Path, words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    one_line(run_here(front_study, "study", "show", *words), *parts)
