"""Prices and costs on the command line and in the Python API."""

import json
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.cli.command import CommandOutput, refused, run_here
from tuner.use_cases.stored import read_study

COST, TOTAL = "cost_per_million_output_tokens", "cost_per_million_total_tokens"
LIST = "0.526 USD per GPU-hour (list price: Amazon EC2 on-demand, Linux, us-east-1, g4dn.xlarge, as of 2026-07)"
SMALL = ("--users", "4", "--prompts", "8", "--input-len", "64", "--output-len", "16")
STUDY = (
    *("optimize", "--engine", "simulated", "--study", "s", *SMALL, "--only", "max_num_seqs", "--plain"),
    *("--finalists", "1", "--confirm-rounds", "1", "--baseline-repeats", "1"),
)
BY_COST = ("--objective", f"{COST}:30", "--objective", "p99_tpot_ms")


def succeeded(output: CommandOutput) -> CommandOutput:
    assert output.code == 0, output.err
    return output


def simulated(folder: Path, *argv: str) -> Any:
    return json.loads(succeeded(run_here(folder, "simulate", "--json", *argv)).out)


def trials(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(succeeded(run_here(folder, "study", "trials", "--json")).out)
    return found


def test_a_simulation_has_the_cost_at_the_given_price(folder: Path) -> None:
    found = simulated(folder, "--price", "0.36")
    # a second costs 0.0001
    assert found[COST] == pytest.approx(100 / found["output_throughput"])
    assert found[TOTAL] == pytest.approx(100 / found["total_token_throughput"])
    assert found["price"] == {"per_gpu_hour": 0.36, "currency": None, "list_price": None}
    page = succeeded(run_here(folder, "simulate", "--price", "0.36")).out
    assert "price              0.36 per GPU-hour (as given)" in page
    assert COST in page


def test_without_a_price_a_simulation_has_the_cards_list_price_and_says_so(folder: Path) -> None:
    found = simulated(folder)
    assert found[COST] == pytest.approx(0.526e6 / 3600 / found["output_throughput"])
    page = " ".join(succeeded(run_here(folder, "simulate")).out.split())
    assert LIST in page
    assert "per Mtok" in page


def test_a_card_without_a_list_price_has_no_cost(folder: Path) -> None:
    found = simulated(folder, "--gpu", "rtx6000ada")
    assert found["price"] is None
    assert COST not in found
    assert COST not in succeeded(run_here(folder, "simulate", "--gpu", "rtx6000ada")).out
    assert simulated(folder, "--gpu", "rtx6000ada", "--price", "1")[COST] > 0


@pytest.mark.parametrize("command", [("simulate",), STUDY])
@pytest.mark.parametrize(("price", "shown"), [("0", "0"), ("-1", "-1"), ("nan", "nan"), ("inf", "inf")])
def test_an_impossible_price_is_refused(folder: Path, command: tuple[str, ...], price: str, shown: str) -> None:
    message = f"--price {shown}: a price is from 0.000001 to 1,000,000 per GPU-hour; give for example 0.35"
    refused(run_here(folder, *command, "--price", price), folder, message)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--gpu", "rtx6000ada", *BY_COST), f"--objective '{COST}': no list price of NVIDIA RTX 6000 Ada"),
        (("--gpu", "rtx6000ada", "--slo", f"{COST}<1"), f"--slo '{COST}': no list price"),
        (("--objective", "joules_per_output_token"), "a simulation has no energy counter; measure it on a GPU"),
    ],
)
def test_a_goal_that_is_never_measured_is_refused(folder: Path, argv: tuple[str, ...], message: str) -> None:
    refused(run_here(folder, *STUDY, *argv), folder, message)


def test_a_study_of_the_cost_has_it_in_trials_result_and_script(folder: Path) -> None:
    ended = succeeded(run_here(folder, *STUDY, *BY_COST, "--trials", "4")).out
    assert LIST in " ".join(ended.split())
    for row in trials(folder):
        if row["state"] != "failed":
            assert row[COST] == pytest.approx(0.526e6 / 3600 / row["output_throughput"])
            assert row[TOTAL] == pytest.approx(row[COST] / 5)  # 64 tokens in for 16 out
    listed = succeeded(run_here(folder, "study", "trials", "--sort", COST)).out
    assert COST in listed
    assert f"price: {LIST}" in " ".join(listed.split())
    assert LIST in " ".join(succeeded(run_here(folder, "study", "show")).out.split())
    for command in (("trials",), ("trial", "0"), ("show", "--pareto"), ("compare", "0", "1")):
        shown = " ".join(succeeded(run_here(folder, "study", *command)).out.split())
        assert LIST in shown
        assert "USD per Mtok" in shown
    # the script measures again what the cost follows from
    script = (folder / "best_serve.sh").read_text(encoding="utf-8")
    assert "output_throughput" in script
    assert COST not in script
    assert read_study(str(folder / "tuner_study" / "tuner.db"), "s").record.facts["price"]["per_gpu_hour"] == 0.526


def test_the_price_of_the_first_run_holds_for_the_study(folder: Path) -> None:
    succeeded(run_here(folder, *STUDY, "--trials", "1", "--price", "0.36"))
    succeeded(run_here(folder, *STUDY, "--trials", "2"))
    succeeded(run_here(folder, *STUDY, "--trials", "3", "--price", "0.36"))
    rows = [row for row in trials(folder) if row["state"] != "failed"]
    assert len({row["number"] for row in rows}) == 3
    assert [row[COST] for row in rows] == pytest.approx([100 / row["output_throughput"] for row in rows])
    other = run_here(folder, *STUDY, "--trials", "4", "--price", "0.4")
    assert (other.code, other.out) == (2, "")
    rule = "the study 's' has 0.36 per GPU-hour (as given); leave it out, or give another --study"
    assert f"tuner: --price 0.4: {rule}\n" in other.err


def test_the_python_api_takes_a_price(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    small = {"max_concurrency": 4, "num_prompts": 8, "input_len": 64, "output_len": 16}
    study = tuner.optimize(study="s", engine="simulated", trials=1, confirm_rounds=0, price=0.36, **small)  # type: ignore[arg-type]
    best = study.best
    assert best is not None
    rate = best.metrics["output_throughput"]
    assert rate is not None
    assert best.metrics[COST] == pytest.approx(100 / rate)
    with pytest.raises(tuner.SettingError, match="price=0: a price is from"):
        tuner.optimize(study="t", engine="simulated", price=0.0)
