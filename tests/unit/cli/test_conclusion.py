"""The tables at the end of a study: the winner beside the defaults, the finalists, the flags."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, Group

from records.trials import Config, Provenance, ServerFacts, TrialKind
from tests.unit.cli.studies import GOALS, trial
from tuner.cli.output.pages.optimize import conclusion_parts
from tuner.results.conclusion import worse_metrics
from tuner.results.findings import Findings

CONFIG = {"max_num_seqs": 50, "block_size": 64, "stream_interval": 8}
DEFAULTS = {"max_num_seqs": 256, "stream_interval": 1}
LABEL = "finals 0,1,2"


def ratio(value: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"ratio": value, "low": low, "high": high, "rounds": 2}


def contender(number: int, score: float | None, out: str | None = None) -> dict[str, Any]:
    if score is None:
        return {"number": number, "score": None, "metrics": {}, "disqualified": out}
    metrics = {"output_throughput": ratio(1.1, 1.05, 1.15), "p99_tpot_ms": ratio(0.9)}
    return {"number": number, "score": ratio(score, score - 0.1, score + 0.1), "metrics": metrics, "disqualified": out}


def effect(name: str, value: float, low: float, high: float, needed: float = 0.0) -> dict[str, Any]:
    found = {"name": name, "value": CONFIG[name], "default": DEFAULTS.get(name), "ratio": value}
    return found | {"low": low, "high": high, "metrics": {}, "needed": needed, "trials": 9}


CONCLUSION = {
    "winner": 1,
    "rounds": 2,
    "contenders": [contender(2, None, "missed p99_tpot_ms<50 in round 1 (60)"), contender(1, 1.2)],
    "flag_effects": [effect("max_num_seqs", 1.2, 1.1, 1.3), effect("stream_interval", 0.99, 0.9, 1.1)],
}
RECORDS = (
    trial(0, 990.0),
    trial(1, 1500.0, score=1.4, config=CONFIG),
    trial(2, 1200.0, config=CONFIG),
    trial(0, 800.0, round_=1, label="finals of an earlier run"),
    *(trial(0, value, round_=n, label=LABEL, median_itl_ms=10.0) for n, value in ((2, 1000.0), (3, 1002.0))),
    *(trial(1, value, round_=n, label=LABEL, median_itl_ms=80.0, tpot=9.0) for n, value in ((2, 1098.0), (3, 1102.0))),
)


def findings(conclusion: dict[str, Any], records: Any = RECORDS) -> Findings:
    return Findings(conclusion, records, GOALS, DEFAULTS)


def printed(found: Findings, width: int = 100) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None, markup=False)
    with console.capture() as captured:
        console.print(Group(*conclusion_parts(found)))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_the_winner_beside_the_defaults() -> None:
    assert printed(findings(CONCLUSION)) == [
        "",
        "the winner beside the defaults, measured: medians of 2 rounds",
        "metric             defaults #0           #1   ratio   95 % interval  SLO",
        "────────────────────────────────────────────────────────────────────────",
        "score                        1        1.200  ×1.200  1.100 to 1.300",
        "output_throughput  1,001 tok/s  1,100 tok/s  ×1.100  1.050 to 1.150",
        "p99_tpot_ms                 10            9  ×0.900                  <50",
        "much worse than with the defaults, but no objective: median_itl_ms 10 → 80 (×8.000)",
        "",
        "finalists, as ratios to the defaults",
        "finalist     score   95 % interval  output_throughput  p99_tpot_ms",
        "──────────────────────────────────────────────────────────────────",
        "#1 winner    1.200  1.100 to 1.300             ×1.100       ×0.900",
        "#2 excluded      –",
        "#2 is excluded: missed p99_tpot_ms<50 in round 1 (60)",
        "",
        "flags of #1",
        "effect: score relative to the same configuration with that flag reset, estimated from 9 measured",
        "trials",
        "flag               default        effect  95 % interval",
        "───────────────────────────────────────────────────────",
        "max_num_seqs=50    256             ×1.20   1.10 to 1.30",
        "stream_interval=8  1               ×0.99   0.90 to 1.10",
        "block_size=64      unknown  not measured",
    ]


def test_a_round_that_only_one_of_both_finished_does_not_count() -> None:
    cut = "finals 0,1,3"  # a time limit ended these rounds
    later = [trial(0, 400.0, round_=4, label=cut), trial(1, 2000.0, round_=5, label=cut)]
    assert printed(findings(CONCLUSION, [*RECORDS, *later]))[:7] == printed(findings(CONCLUSION))[:7]


def test_a_round_of_an_earlier_group_counts() -> None:
    earlier = trial(1, 890.0, round_=1, label="finals of an earlier run", tpot=9.0)
    lines = printed(findings(CONCLUSION, [*RECORDS, earlier]))
    assert lines[1] == "the winner beside the defaults, measured: medians of 3 rounds"
    assert lines[5] == "output_throughput  1,000 tok/s  1,098 tok/s  ×1.100  1.050 to 1.150"


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_broken(width: int) -> None:
    lines = printed(findings(CONCLUSION), width)
    assert max(map(len, lines)) <= width
    assert {"output_throughput", "p99_tpot_ms<50", "max_num_seqs=50", "stream_interval=8"} <= {
        word for line in lines for word in line.split()
    }


def test_where_the_defaults_are_kept_the_best_finalist_is_beside_them() -> None:
    kept = {**CONCLUSION, "winner": 0, "flag_effects": [], "would_help": ["FP8 weights: score ×1.20"]}
    lines = printed(findings(kept))
    title = "what would help, but this study's settings exclude it: predicted, not measured"
    assert lines[-2:] == [title, "FP8 weights: score ×1.20"]
    assert lines[0] == "what you get, defaults #0, measured: output_throughput 1,001 tok/s, p99_tpot_ms 10"
    assert lines[2] == "not chosen: the best finalist beside the defaults, measured: medians of 2 rounds"
    assert [line for line in lines if line.startswith("flags of")] == []
    assert [line for line in lines if "winner" in line] == []


def test_without_rounds_the_searchs_figures_are_shown_without_an_interval() -> None:
    alone = {"winner": 1, "rounds": 0, "contenders": [], "flag_effects": []}
    lines = printed(findings(alone, RECORDS[:3]))
    assert lines[1] == "the winner beside the defaults, measured: one trial of the search each"
    assert "score                        1        1.400" in lines
    assert "output_throughput    990 tok/s  1,500 tok/s  ×1.515" in lines
    assert "their effects are not known" in lines


def test_a_flag_without_which_the_configuration_fails_is_marked() -> None:
    risky = {**CONCLUSION, "flag_effects": [effect("block_size", 1.0, 0.9, 1.1, needed=0.8)]}
    lines = printed(findings(risky))
    assert "                                                           fails or misses" in lines
    assert "flag               default        effect  95 % interval  an SLO without it" in lines
    assert "block_size=64      unset           ×1.00   0.90 to 1.10               80 %" in lines


def test_effects_that_are_all_within_the_noise_are_said_to_be() -> None:
    noisy = {**CONCLUSION, "flag_effects": [effect("max_num_seqs", 1.0, 0.9, 1.1)]}
    assert "the effect of each single flag is within the noise" in " ".join(printed(findings(noisy)))


def test_what_all_flags_bring_together_is_said_where_no_single_effect_is_beyond_the_noise() -> None:
    effects = [effect("max_num_seqs", 1.1, 0.9, 1.3), effect("stream_interval", 1.1, 0.9, 1.3)]
    records = [replace(each, kind=TrialKind.BASELINE) if each.number == 0 else each for each in RECORDS]
    lines = printed(findings({**CONCLUSION, "reference": 0, "flag_effects": effects}, records), width=300)
    assert (
        "all flags together ×1.20 (1.100 to 1.300) in 2 rounds, the share of each flag is not known yet; "
        "effect: score relative to the same configuration with that flag reset, estimated from 9 measured trials"
    ) in lines
    assert [line for line in lines if "within the noise" in line] == []


def test_a_winner_with_fewer_flags_is_compared_with_the_best_score() -> None:
    small = trial(1, 1500.0, score=1.4, config={"max_num_seqs": 50})
    records = (RECORDS[0], small, *RECORDS[2:])
    smaller = {**CONCLUSION, "smaller": {"best": 2, "score": ratio(0.99, 0.97, 1.01)}}
    assert printed(findings(smaller, records))[0] == (
        "trial 2 has the best score with 3 flags; the winner has 1 and ×0.990 (0.970 to 1.010) of that score"
    )
    assert not any("with the best score" in line for line in printed(findings({**CONCLUSION, "smaller": None})))


def test_without_a_winner_or_the_defaults_there_is_no_comparison() -> None:
    assert printed(findings({"winner": None, "rounds": 0, "contenders": [], "flag_effects": []})) == []
    alone = findings({"winner": 1, "rounds": 0, "contenders": [], "flag_effects": []}, RECORDS[1:3])
    assert printed(alone)[1] == "flags of #1"


def test_there_is_no_table_of_ratios_without_a_ratio_and_none_of_the_reference_with_itself() -> None:
    out = "missed p99_tpot_ms<50 in round 1 (60)"
    excluded = {
        "winner": 1,
        "reference": 1,
        "rounds": 2,
        "contenders": [contender(2, None, out), contender(0, None, out)],
    }
    lines = printed(findings({**excluded, "flag_effects": []}))
    assert not [line for line in lines if "as ratios to" in line or line.startswith("metric")]
    assert f"#2 is excluded: {out}" in lines


def test_only_a_much_worse_latency_outside_the_objectives_is_reported() -> None:
    better = [replace(r, outcome=r.outcome) for r in RECORDS if r.number == 0]
    records = (*better, *(trial(1, 1100.0, round_=n, label=LABEL, median_itl_ms=12.0) for n in (2, 3)))
    assert worse_metrics(findings(CONCLUSION, records)) == []


def test_a_simulation_is_called_predicted() -> None:
    records = tuple(
        replace(r, outcome=replace(r.outcome, provenance=Provenance.SIMULATED)) for r in RECORDS if r.outcome
    )
    lines = printed(findings(CONCLUSION, records))
    assert lines[1] == "the winner beside the defaults, predicted: medians of 2 rounds"
    assert "estimated from 9 simulated trials" in " ".join(lines)


def test_a_flag_with_the_value_that_the_engine_chooses_has_no_effect() -> None:
    """The greedy study on a T4 exported attention_backend=FLASHINFER, the default there, at ×1.27 [0.61, 2.67]."""
    config: Config = {**CONFIG, "attention_backend": "FLASHINFER", "stream_interval": 1}
    first, *others = [replace(r, config=config if r.number == 1 else r.config) for r in RECORDS]
    assert first.outcome is not None
    server = ServerFacts(attention_backend="FLASHINFER")
    first = replace(first, kind=TrialKind.BASELINE, outcome=replace(first.outcome, server=server))
    backend: dict[str, Any] = {
        "name": "attention_backend",
        "value": "FLASHINFER",
        "default": None,
        "ratio": 1.27,
        "low": 0.61,
    }
    backend |= {"high": 2.67, "metrics": {}, "needed": 0.0, "trials": 9}
    lines = printed(findings({**CONCLUSION, "flag_effects": [backend]}, [first, *others]))
    cells = {line.split("  ")[0]: line.split()[-2:] for line in lines}
    assert cells["attention_backend=FLASHINFER"] == ["engine's", "choice"]
    assert cells["stream_interval=1"] == ["the", "default"]
    assert cells["max_num_seqs=50"] == ["not", "measured"]
