"""The contest of the finals: what it measures next and when it ends, in scores that a person worked out."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from records.trials import (
    Config,
    Failure,
    FailureKind,
    Phase,
    Provenance,
    Repeat,
    TrialKind,
    TrialOutcome,
    TrialRecord,
    Verdict,
)
from storage.store import Store
from tests.some import some
from tests.unit.study.conftest import Bench
from tuner.sampler.flag_effects import Elimination
from tuner.scoring.sequential import LEAST_SPREAD, SPREAD_FACTOR, Arms, Plan, plan
from tuner.study import contest
from tuner.study.contest import Contest, Step
from tuner.study.optuna_study import OptunaStudy
from tuner.study.specification.resolve_workload import make_goals

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KNOBS = "description: knobs\nparameters:\n" + "".join(
    f"  {name}: {{description: d, type: categorical, choices: [1, 2], flag: --{name}, engine_default: 1}}\n"
    for name in "abcdef"
)
A, AB, ABC = {"a": 2}, {"a": 2, "b": 2}, {"a": 2, "b": 2, "c": 2}
SCORES = {"a": 0.3}
"""The logarithm of the score that each flag brings: only `a` pays."""


@dataclass
class Finals:
    """A contest without a server: `effects` are the true effects of the flags, and nothing is noisy.

    Throughput weighs 40 of 50 beside the success rate, which is always 1: a score's logarithm x is a throughput of
    1000 exp(x / 0.8). Servers that lack one of the flags `needed` crash in trials of the finals.
    """

    bench: Bench
    finalists: Sequence[Config]
    effects: Mapping[str, float]
    beliefs: Mapping[str, float]
    spread: float
    searched: int = 4
    needed: Collection[str] = ()
    others: Config = field(default_factory=lambda: {"c": 2})
    records: list[TrialRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bench.space_file.write_text(KNOBS)
        self.spec = self.bench.spec(reduce=True, goals=make_goals(["output_throughput"], ["p99_tpot_ms<50"]))
        self.measure(0, {}, TrialKind.BASELINE)
        for config in self.finalists:
            self.measure(len(self.records), config, TrialKind.SEARCH)
        for _ in range(self.searched - len(self.records)):
            self.measure(len(self.records), self.others, TrialKind.SEARCH)
        chosen = self.records[: 1 + len(self.finalists)]
        self.contest = Contest(self.spec, cast(Store, self), cast(OptunaStudy, self), chosen, "finals")

    def trials(self, name: str) -> list[TrialRecord]:
        return list(self.records)

    def joint_scores(self, configs: Sequence[Config], without: Collection[int] = ()) -> tuple[Any, Any, float]:
        own = (self.spread**2 - LEAST_SPREAD**2) / SPREAD_FACTOR**2
        return np.array([self.log_score(each, self.beliefs) for each in configs]), own * np.eye(len(configs)), 0.01

    def eliminate(self, number: int, defaults: int, without: Collection[int]) -> Elimination:
        names = self.spec.space.changed(self.records[number].config)
        return Elimination(tuple(reversed(names)))

    def log_score(self, config: Config, effects: Mapping[str, float]) -> float:
        return sum(effects.get(name, 0.0) for name in self.spec.space.changed(config))

    def measure(self, number: int, config: Config, kind: TrialKind, round_: int = 0, label: str | None = None) -> None:
        score = math.exp(self.log_score(config, self.effects))
        metrics = {"output_throughput": 1000.0 * score ** (1 / 0.8), "p99_tpot_ms": 10.0, "success_rate": 1.0}
        repeats = (Repeat(0, 0, 10, 10, 0, 1.0, metrics),)
        outcome = TrialOutcome(NOW, NOW, Provenance.MEASURED, "w0", "cpu", {}, "", repeats=repeats)
        verdict = Verdict({"output_throughput": metrics["output_throughput"]}, {}, score)
        if kind is TrialKind.REDUCED and not set(self.needed) <= set(config):
            failure = Failure(FailureKind.ENGINE_CRASH, Phase.READY, "it crashed")
            outcome = TrialOutcome(NOW, NOW, Provenance.MEASURED, "w0", "cpu", {}, "", failure=failure)
            verdict = Verdict({}, {"failed": 1.0}, None)
        self.records.append(TrialRecord("s", number, round_, kind, label, {}, config, 1, NOW, outcome, verdict))

    def take(self, step: Step, done: int) -> int:
        """Measure a step; return the number of rounds that are complete."""
        for form in step.forms:
            number = 1 + max(record.number for record in self.records)
            self.measure(number, form.config, TrialKind.REDUCED, 0, form.label)
        for round_ in range(done + 1, done + step.rounds + 1):
            for record in step.group:
                self.measure(record.number, record.config, TrialKind.CONFIRM, round_, "finals")
        return done + step.rounds


def play(finals: Finals) -> tuple[list[list[int]], int]:
    """Return the numbers of each group of rounds, and the number of rounds."""
    groups: list[list[int]] = []
    done = 0
    while (step := finals.contest.step(done)) is not None:
        groups += [[record.number for record in step.group]] if step.group else []
        done = finals.take(step, done)
    return groups, done


def test_a_form_that_is_surely_as_good_is_measured_beside_its_finalist_and_then_in_rounds(bench: Bench) -> None:
    finals = Finals(bench, [AB], SCORES, SCORES, spread=0.004)
    step = some(finals.contest.step(0))
    assert [(form.label, dict(form.config)) for form in step.forms] == [("#1 again", AB), ("#1 with 1 of 2 flags", A)]
    assert finals.take(step, 0) == 0
    assert play(finals) == ([[0, 5, 1]], 2)
    preference = finals.contest.preference(2)
    assert (preference.flags, preference.as_good) == ({0: 0, 1: 2, 5: 1}, frozenset({1, 5}))
    assert preference.looks == 3


def test_the_contest_computes_with_one_blas_thread(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: set[int] = set()

    def counted(arms: Arms, rounds: Sequence[Mapping[int, float]], noise: float) -> Plan | None:
        counts.update(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        return plan(arms, rounds, noise)

    monkeypatch.setattr(contest, "plan", counted)
    with threadpool_limits(2, "blas"):
        play(Finals(bench, [AB], SCORES, SCORES, spread=0.004))
    assert counts == {1}


def test_a_flag_that_surely_pays_is_not_left_out(bench: Bench) -> None:
    both = {"a": 0.2, "b": 0.2}
    assert play(Finals(bench, [AB], both, both, spread=0.004)) == ([[0, 1]], 2)


def test_a_form_whose_server_fails_is_out_and_the_next_one_is_tried(bench: Bench) -> None:
    finals = Finals(bench, [ABC], SCORES, SCORES, spread=0.004, needed="b")
    groups, _ = play(finals)
    forms = {record.number: dict(record.config) for record in finals.records if record.kind is TrialKind.REDUCED}
    assert forms == {4: ABC, 5: A, 6: {"a": 2, "b": 2}}
    assert groups[0] == [0, 6, 1]


def test_once_a_form_has_failed_those_are_tried_that_keep_half_of_what_it_lacks(bench: Bench) -> None:
    """Of six flags only `a` pays, and no server runs without `f`, which would be left out first.

    `abcd` has three of the five flags that `a` lacks, and each form of three flags has two. Once `abcde` has failed as
    well, `f` is known to be needed.
    """
    finals = Finals(bench, [dict.fromkeys("abcdef", 2)], SCORES, SCORES, spread=0.004, searched=60, needed="f")
    play(finals)
    forms = ["".join(record.config) for record in finals.records if record.kind is TrialKind.REDUCED]
    assert forms[:3] == ["abcdef", "a", "abcd"]
    assert all("f" in form for form in forms[forms.index("abcde") + 1 :])
    assert forms[-1] == "af"


def test_the_single_trial_of_a_form_counts(bench: Bench) -> None:
    """The prior of the loss is 0 ± 0.07, the single trials measure 0.2 ± 0.035: no round measures the form."""
    finals = Finals(bench, [AB], {"a": 0.1, "b": 0.2}, SCORES, spread=0.05)
    step = some(finals.contest.step(0))
    assert [form.config for form in step.forms] == [AB, A]
    finals.take(step, 0)
    following = some(finals.contest.step(0))
    assert [record.number for record in following.group] == [0, 1]


def test_a_finalist_that_was_lucky_in_the_search_does_not_keep_its_idle_flags(bench: Bench) -> None:
    """The prior of the finalist and its form is e^0.4; the single trials measure e^0.3 for both."""
    groups, _ = play(Finals(bench, [AB], SCORES, {"a": 0.4}, spread=0.05))
    assert groups[0] == [0, 5, 1]


def test_no_form_is_measured_of_a_finalist_that_loses_to_the_defaults_with_each_flag(bench: Bench) -> None:
    """The loss is 0.3 ± 0.05 by the prior, and 0.15 ± 0.05 or more for each form."""
    losing = {"a": -0.15, "b": -0.15}
    finals = Finals(bench, [AB], losing, losing, spread=0.05)
    groups, done = play(finals)
    assert groups == [[0, 1]] * (done // 2)
    assert not any(record.kind is TrialKind.REDUCED for record in finals.records)


def test_a_form_of_a_losing_finalist_that_may_be_better_than_the_defaults_is_measured(bench: Bench) -> None:
    """By the prior, `b` costs 0.3, and `a` brings 0.1."""
    effects = {"a": 0.1, "b": -0.3}
    finals = Finals(bench, [AB], effects, effects, spread=0.05)
    groups, _ = play(finals)
    assert A in [record.config for record in finals.records if record.kind is TrialKind.REDUCED]
    assert all(5 in group for group in groups)


def test_the_last_form_that_may_be_tried_takes_part(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "FORMS_SHARE", 1 / 12)  # one of the 12 measurements
    assert play(Finals(bench, [AB], SCORES, SCORES, spread=0.004)) == ([[0, 5, 1]], 2)


def test_a_form_that_the_search_measured_needs_no_trial(bench: Bench) -> None:
    finals = Finals(bench, [AB], SCORES, SCORES, spread=0.004, others=A)
    assert play(finals) == ([[0, 2, 1]], 2)
    assert not any(record.kind is TrialKind.REDUCED for record in finals.records)


@pytest.mark.parametrize(("searched", "most", "group"), [(4, 12, 3), (15, 15, 3), (36, 18, 3), (60, 30, 4)])
def test_the_finals_take_half_of_the_searchs_measurements_with_a_third_for_forms(
    bench: Bench, searched: int, most: int, group: int
) -> None:
    finals = Finals(bench, [AB, ABC, {"a": 2, "c": 2}], {"a": 0.02}, {"a": 0.02}, spread=0.2, searched=searched)
    groups, done = play(finals)
    rounds = sum(record.round > 0 for record in finals.records)
    forms = sum(record.kind is TrialKind.REDUCED for record in finals.records)
    assert rounds + forms <= most
    assert forms <= most / 3
    assert len(groups[0]) == group
    assert done >= 4


def test_a_lack_of_gain_is_stated_only_once_larger_gains_are_excluded(bench: Bench) -> None:
    """The gain is 0.1 %, and the noise counts as 0.5 %.

    After two rounds of two configurations it has 1 degree of freedom: t(1 - 0.05 / 6, 1) = 38.2 makes an interval of
    0.5 % · 38.2 · √(2 / 2) = 19 %. After four rounds it has 3: 0.5 % · 4.86 · √(2 / 4) = 1.7 %, within 5 %.
    """
    assert play(Finals(bench, [A], {"a": 0.001}, {}, spread=0.01)) == ([[0, 1], [0, 1]], 4)


def test_a_gain_is_measured_until_half_of_it_is_sure(bench: Bench) -> None:
    """The gain's logarithm is 0.3: after two rounds 0.3 ± 0.19, whose low end is below 0.15; after four ± 0.02."""
    assert play(Finals(bench, [A], SCORES, SCORES, spread=0.004)) == ([[0, 1], [0, 1]], 4)
