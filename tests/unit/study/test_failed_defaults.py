"""A study whose defaults fail: it ends at once, unless a configuration that was given works."""

from __future__ import annotations

from records.trials import Failure, FailureKind, Phase
from tests.unit.study.conftest import Bench
from tests.unit.study.test_run import peak_at_16
from tuner.specs import TrialSpec
from tuner.study.protocols import RunEnding
from tuner.study.specification.spec import Enqueued

AT_16 = Enqueued("n16", {"max_num_seqs": 16})
AT_8 = Enqueued("n8", {"max_num_seqs": 8})
REMEDY = "out of memory; decrease max_num_seqs"


def out_of_memory(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
    """Every configuration fails, each with a message of its own."""
    return Failure(FailureKind.OUT_OF_MEMORY_STARTUP, Phase.READY, f"{REMEDY}{'x' * spec.number}")


def without_sequences(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
    """Fail unless the number of sequences is set."""
    return peak_at_16(spec, index) if "max_num_seqs" in spec.config else out_of_memory(spec, index)


def test_failed_defaults_end_the_study_with_the_reason(bench: Bench) -> None:
    result = bench.run(out_of_memory, trials=20)
    assert (result.ending, result.conclusion) == (RunEnding.DEFAULTS_FAILED, None)
    assert result.reason is not None
    assert result.reason.message == REMEDY
    assert len(bench.records()) == 1


def test_the_same_command_ends_at_once_and_a_configuration_that_works_continues(bench: Bench) -> None:
    bench.run(without_sequences, trials=4)
    again = bench.run(without_sequences, trials=4)
    assert again.ending is RunEnding.DEFAULTS_FAILED
    assert again.reason is not None
    assert len(bench.records()) == 1
    result = bench.run(without_sequences, trials=4, enqueue=(AT_16,), confirm_rounds=0)
    assert result.ending is RunEnding.DONE
    assert result.conclusion is not None
    assert len(bench.records()) == 4


def test_the_study_ends_once_everything_given_has_failed(bench: Bench) -> None:
    result = bench.run(out_of_memory, trials=20, baseline=AT_8, enqueue=(AT_16,))
    assert result.ending is RunEnding.DEFAULTS_FAILED
    assert result.reason is not None
    assert result.reason.message == REMEDY
    assert [record.label for record in bench.records()] == ["defaults", "n8", "n16"]


def test_a_trial_that_works_beside_the_defaults_keeps_the_study_running(bench: Bench) -> None:
    result = bench.run(without_sequences, trials=6, slots=2, seed=1, confirm_rounds=0)
    assert result.ending is RunEnding.DONE
    assert [record.state for record in bench.records()][:2] == ["failed", "ok"]
    assert len(bench.records()) == 6


def test_defaults_that_infrastructure_failed_do_not_end_the_study(bench: Bench) -> None:
    def busy_at_first(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        if not spec.config:
            return Failure(FailureKind.GPU_BUSY, Phase.READY, "free memory is less than desired")
        return peak_at_16(spec, index)

    result = bench.run(busy_at_first, trials=3, confirm_rounds=0)
    assert result.ending is RunEnding.DONE
    assert [record.attempts for record in bench.records()] == [3, 1, 1]
