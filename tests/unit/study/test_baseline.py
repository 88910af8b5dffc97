"""`--baseline`: what the user runs today is read, measured like the defaults, and compared with."""

from __future__ import annotations

import pytest

from records.trials import Failure, TrialKind
from search_spaces import Context, hardware_named, load_space
from tests.unit.study.conftest import Bench
from tests.unit.study.test_run import peak_at_16
from tuner.errors import SettingError, UserError
from tuner.specs import TrialSpec
from tuner.study.specification.configurations import read_baseline, read_enqueued
from tuner.study.specification.spec import Enqueued

AT_8 = Enqueued("baseline", {"max_num_seqs": 8})
AT_16 = Enqueued("n16", {"max_num_seqs": 16})


@pytest.mark.parametrize("text", ["--max-num-seqs 8", "--max-num-seqs=8", '{"max_num_seqs": 8}'])
def test_flags_and_json_are_the_same_configuration(bench: Bench, text: str) -> None:
    assert read_baseline(bench.spec().space, text) == AT_8


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("--max-num-sequences 8", "--max-num-sequences is no flag of the search space"),
        ("--max-num-seqs 900", "900"),
        ("--max-num-seqs", "max_num_seqs"),
        ("what-i-run", "no configuration has this name"),
        ('--block-size "16', "not readable as flags"),
    ],
)
def test_a_baseline_that_is_not_in_the_space_is_a_mistake(bench: Bench, text: str, rule: str) -> None:
    with pytest.raises(SettingError, match=rule) as caught:
        read_baseline(bench.spec().space, text)
    assert caught.value.exit_code == 2


def test_a_name_that_the_host_excludes_is_refused_with_the_reason() -> None:
    """A container has 64 MiB of /dev/shm by default."""
    context = Context(hardware_named("h200"), "0.32.0", host_memory_gib=160.0, shm_gib=0.06)
    space = load_space("kv-offload").resolve(context)
    with pytest.raises(SettingError, match=r"vLLM keeps the blocks in /dev/shm, which has 0.06 GiB here") as caught:
        read_enqueued(space, "enqueue", "offload-128")
    assert "--shm-size" in str(caught.value)
    assert caught.value.exit_code == 2


def test_scores_and_rounds_are_relative_to_the_baseline(bench: Bench) -> None:
    conclusion = bench.run(peak_at_16, trials=3, enqueue=(AT_16,), baseline=AT_8).conclusion
    searched = [record for record in bench.records() if not record.round]
    assert [record.kind for record in searched] == [TrialKind.BASELINE, TrialKind.CURRENT, TrialKind.ENQUEUED]
    # Throughput weighs 40 of 70: 1001, 1340 and 1500 tok/s against 1340.
    scores = [record.verdict.score for record in searched if record.verdict]
    assert scores == pytest.approx([(1001 / 1340) ** (4 / 7), 1.0, (1500 / 1340) ** (4 / 7)])
    assert searched[1].outcome is not None
    assert len(searched[1].outcome.repeats) == 3  # as often as the defaults
    assert conclusion is not None
    assert (conclusion.winner, conclusion.reference) == (2, 1)
    assert conclusion.reason.startswith("trial 2 is better than the baseline beyond the noise")
    assert {record.number for record in bench.records() if record.round} == {1, 2}


def test_without_anything_better_the_baseline_stays(bench: Bench) -> None:
    conclusion = bench.run(peak_at_16, trials=2, baseline=Enqueued("baseline", {"max_num_seqs": 16})).conclusion
    assert conclusion is not None
    assert (conclusion.winner, conclusion.keeps, conclusion.keep_defaults) == (1, "baseline", False)
    assert conclusion.reason == "keep the baseline: no trial of the search has a higher score"


def test_where_the_defaults_fail_the_baseline_takes_their_place(bench: Bench) -> None:
    def no_defaults(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        from records.trials import FailureKind, Phase

        return peak_at_16(spec, index) if spec.config else Failure(FailureKind.ENGINE_CRASH, Phase.READY, "boom")

    conclusion = bench.run(no_defaults, trials=3, enqueue=(AT_16,), baseline=AT_8).conclusion
    assert conclusion is not None
    assert (conclusion.winner, conclusion.reference) == (2, 1)
    assert conclusion.reason.endswith("; the defaults failed (engine_crash)")


def test_a_study_is_not_continued_with_another_baseline(bench: Bench) -> None:
    bench.run(peak_at_16, trials=2, baseline=AT_8)
    with pytest.raises(UserError, match="another baseline"):
        bench.run(peak_at_16, trials=2, baseline=AT_16)
