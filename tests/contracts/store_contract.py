"""The contract of the store on every supported database; a test module supplies the fixture `url` of an empty one."""

import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from records.trials import FailureKind, Provenance, ServerFacts, TrialKind, TrialOutcome, Verdict
from storage import FailedAttempt, StorageError, Store
from tests import store_samples as samples
from tests.contracts.answers_contract import AnswersContract
from tests.contracts.lessons_contract import LessonsContract
from tests.contracts.store_processes import ProcessContract, SizeContract, StoreFixture
from tests.some import some


class StudyContract(StoreFixture):
    """Studies."""

    def test_a_stored_study_is_read_back_unchanged(self, store: Store) -> None:
        record = samples.study()
        store.create_study(record)
        assert store.study("s") == record
        assert store.study("t") is None

    def test_scores_of_the_search_come_by_number(self, store: Store) -> None:
        """The trial that still runs and the rounds do not count; a failed one has no score."""
        for name in ("a", "b", "c"):
            store.create_study(samples.study(name))
        for number, score in ((0, 1.0), (2, 1.5), (1, None)):
            store.add_trial(samples.pending(number, study="a"))
            outcome = samples.failed() if score is None else samples.success()
            store.finish_trial("a", number, 0, outcome, None if score is None else samples.verdict(score))
        store.add_trial(samples.pending(3, study="a"))
        store.add_trial(samples.pending(2, round=1, study="a"))
        store.finish_trial("a", 2, 1, samples.success(), samples.verdict(9.0))
        store.add_trial(samples.pending(0, study="b"))
        store.finish_trial("b", 0, 0, samples.success(), samples.verdict(2.0))
        assert store.scores(["a", "c", "nobody"], 100) == {"a": [1.0, None, 1.5]}
        assert store.scores(["a", "b"], 1) == {"a": [1.0], "b": [2.0]}

    def test_studies_come_oldest_first(self, store: Store) -> None:
        for name in ("b", "a"):
            store.create_study(samples.study(name))
        assert [study.name for study in store.studies()] == ["b", "a"]

    def test_a_second_study_of_the_same_name_is_refused(self, store: Store) -> None:
        store.create_study(samples.study())
        with pytest.raises(StorageError, match="already a study called 's'"):
            store.create_study(samples.study())
        assert len(store.studies()) == 1

    @pytest.mark.parametrize("name", ["", "x" * 513, "a\x00b", "a\nb", "\udcff"])
    def test_an_invalid_study_name_is_refused(self, store: Store, name: str) -> None:
        with pytest.raises(StorageError, match="1 to 512 printable characters"):
            store.create_study(samples.study(name))

    def test_facts_are_merged_and_the_conclusion_is_set(self, store: Store) -> None:
        store.create_study(samples.study())
        store.update_study("s", facts={"devices": ["T4"]})
        store.update_study("s", facts={"engine": "0.33.0"}, conclusion={"winner": 3})
        study = some(store.study("s"))
        assert study.facts == {"engine": "0.33.0", "devices": ["T4"]}
        assert study.conclusion == {"winner": 3}

    def test_an_unknown_study_lists_the_existing_ones(self, store: Store) -> None:
        with pytest.raises(StorageError, match="no study is called 's'; the database has no study yet"):
            store.trials("s")
        store.create_study(samples.study("a"))
        with pytest.raises(StorageError, match="no study is called 's'; the database has: a"):
            store.update_study("s", facts={})

    def test_infinity_in_facts_is_refused_and_located(self, store: Store) -> None:
        store.create_study(samples.study())
        with pytest.raises(StorageError, match=r"facts\.gpu\[0\]\.gib is inf"):
            store.update_study("s", facts={"gpu": [{"gib": math.inf}]})
        assert store.study("s") == samples.study()

    def test_a_value_that_json_cannot_hold_is_refused(self, store: Store) -> None:
        store.create_study(samples.study())
        with pytest.raises(StorageError, match=r"facts\.a\.when is a datetime, which JSON cannot hold"):
            store.update_study("s", facts={"a": {"when": datetime.now(UTC)}})


class TrialContract(StoreFixture):
    """A trial from pending to finished."""

    def test_a_pending_trial_is_read_back_unchanged(self, store: Store) -> None:
        store.create_study(samples.study())
        record = replace(samples.pending(0), label="eager", kind=TrialKind.ENQUEUED)
        store.add_trial(record)
        assert store.trial("s", 0) == record
        assert record.state == "pending"
        assert store.trial("s", 1) is None

    def test_a_second_trial_of_the_same_number_and_round_is_refused(self, begun: Store) -> None:
        with pytest.raises(StorageError, match="trial 0 of study 's' exists already"):
            begun.add_trial(samples.pending(0))
        begun.add_trial(samples.pending(0, round=1))
        assert [(trial.number, trial.round) for trial in begun.trials("s")] == [(0, 0), (0, 1)]

    def test_two_studies_can_have_the_same_trial_number(self, begun: Store) -> None:
        begun.create_study(samples.study("t"))
        begun.add_trial(samples.pending(0, study="t"))
        assert [len(begun.trials(name)) for name in ("s", "t")] == [1, 1]

    def test_a_trial_with_an_outcome_cannot_be_added(self, store: Store) -> None:
        store.create_study(samples.study())
        with pytest.raises(StorageError, match="has an outcome already; add a trial before it runs"):
            store.add_trial(replace(samples.pending(0), outcome=samples.success()))
        assert store.trials("s") == []

    def test_attempts_count_from_one(self, store: Store) -> None:
        store.create_study(samples.study())
        store.add_trial(samples.pending(0))
        assert [store.begin_attempt("s", 0, 0) for _ in range(2)] == [1, 2]
        with pytest.raises(StorageError, match="there is no trial 7 of study 's'"):
            store.begin_attempt("s", 7, 0)

    def test_a_successful_outcome_is_read_back_unchanged(self, begun: Store) -> None:
        server = ServerFacts(
            kv_cache_tokens=2**33,
            weights_gib=0.1,
            attention_backend="TRITON_ATTN",
            untuned_kernels="E=8.json",
            preemptions=0.0,
        )
        server = replace(server, warmup_windows=3, warmup_settled=False, benchmarks_again=1)
        outcome = samples.success(samples.repeat(0), samples.repeat(1, None), samples.repeat(2, 1e16), server=server)
        begun.finish_trial("s", 0, 0, outcome, samples.verdict())
        trial = some(begun.trial("s", 0))
        assert trial == replace(samples.pending(0), attempts=1, outcome=outcome, verdict=samples.verdict())
        assert trial.state == "ok"
        assert list(some(trial.verdict).values) == ["output_throughput", "p99_tpot_ms"]
        assert isinstance(trial.outcome.repeats[2].metrics["output_throughput"], float)  # type: ignore[union-attr]

    def test_progress_counts_the_trials_of_some_studies(self, begun: Store) -> None:
        begun.finish_trial("s", 0, 0, samples.success(), samples.verdict(1.25))
        for number, round in ((1, 0), (2, 0), (0, 1)):
            begun.add_trial(samples.pending(number, round))
            begun.begin_attempt("s", number, round)
        begun.finish_trial("s", 1, 0, samples.failed(), None)
        begun.finish_trial("s", 0, 1, samples.success(), samples.verdict(9.5))
        begun.create_study(samples.study("empty"))
        assert begun.progress(["s", "empty", "unknown"]) == {"s": (2, 1, 1, 1.25), "empty": (0, 0, 0, None)}
        assert begun.progress([]) == {}

    @pytest.mark.parametrize(
        ("outcome", "state"),
        [
            (samples.failed(), "failed"),
            (samples.cut(), "cut"),
            (samples.success(server=ServerFacts()), "infeasible"),  # no values differ from no server
            (replace(samples.success(), argv=("a\udcff", "b\x00"), environment={"A": "\udcff😀"}), "infeasible"),
        ],
        ids=["a failure", "cut short", "facts without values", "no valid text"],
    )
    def test_an_outcome_without_a_verdict_is_read_back(self, begun: Store, outcome: TrialOutcome, state: str) -> None:
        begun.finish_trial("s", 0, 0, outcome, None)
        trial = some(begun.trial("s", 0))
        assert (trial.outcome, trial.verdict, trial.state) == (outcome, None, state)

    def test_times_are_read_back_in_utc(self, begun: Store) -> None:
        outcome = replace(samples.success(), ended_at=datetime(2026, 7, 1, 0, 30, tzinfo=samples.BERLIN))
        begun.finish_trial("s", 0, 0, outcome, None)
        trial = some(begun.trial("s", 0))
        assert trial.outcome is not None
        assert trial.outcome.ended_at.isoformat() == "2026-06-30T23:30:00+00:00"
        assert trial.outcome.started_at.isoformat() == "2026-03-01T12:00:00.123456+00:00"

    def test_a_time_without_a_zone_is_refused(self, begun: Store) -> None:
        outcome = replace(samples.success(), ended_at=datetime(2026, 7, 1))
        with pytest.raises(StorageError, match="without a time zone"):
            begun.finish_trial("s", 0, 0, outcome, None)

    def test_invalid_text_in_a_log_is_replaced(self, begun: Store) -> None:
        begun.finish_trial("s", 0, 0, samples.failed(message="a\x00b\udcffc 😀"), None)
        trial = some(begun.trial("s", 0))
        assert trial.outcome is not None
        assert some(trial.outcome.failure).message == "a\ufffdb\ufffdc 😀"

    def test_a_trial_finishes_once(self, begun: Store) -> None:
        begun.finish_trial("s", 0, 0, samples.success(), None)
        with pytest.raises(StorageError, match="trial 0 of study 's' is finished already"):
            begun.finish_trial("s", 0, 0, samples.failed(), None)
        with pytest.raises(StorageError, match="finished already"):
            begun.begin_attempt("s", 0, 0)
        trial = some(begun.trial("s", 0))
        assert trial.outcome == samples.success()
        assert trial.attempts == 1

    def test_an_outcome_of_another_provenance_is_refused(self, begun: Store) -> None:
        with pytest.raises(StorageError, match="measured study, but its outcome is simulated"):
            begun.finish_trial("s", 0, 0, samples.success(provenance=Provenance.SIMULATED), None)
        assert [trial.state for trial in begun.trials("s")] == ["pending"]

    def test_an_outcome_without_a_repeat_or_a_failure_is_refused(self, begun: Store) -> None:
        with pytest.raises(StorageError, match="neither a repeat nor a failure"):
            begun.finish_trial("s", 0, 0, replace(samples.success(), repeats=()), None)

    @pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
    def test_inf_and_nan_are_refused_and_nothing_is_stored(self, begun: Store, value: float) -> None:
        outcome = samples.success(samples.repeat(0), samples.repeat(1, value))
        with pytest.raises(StorageError, match=r"repeat 1: metrics\.output_throughput is -?(inf|nan)"):
            begun.finish_trial("s", 0, 0, outcome, None)
        with pytest.raises(StorageError, match="score is"):
            begun.finish_trial("s", 0, 0, samples.success(), samples.verdict(score=value))
        with pytest.raises(StorageError, match=r"server\.kv_cache_gib is"):
            begun.finish_trial("s", 0, 0, samples.success(server=ServerFacts(kv_cache_gib=value)), None)
        assert begun.trials("s") == [replace(samples.pending(0), attempts=1)]
        begun.finish_trial("s", 0, 0, samples.failed(), None)
        assert [trial.outcome for trial in begun.trials("s")] == [samples.failed()]

    def test_trials_are_ordered_and_filtered(self, begun: Store) -> None:
        begun.add_trial(samples.pending(10))
        begun.add_trial(samples.pending(2, kind=TrialKind.BASELINE))
        begun.add_trial(samples.pending(2, round=1, kind=TrialKind.CONFIRM))
        begun.finish_trial("s", 2, 0, samples.success(), None)

        def keys(kind: TrialKind | None = None, finished: bool | None = None) -> list[tuple[int, int]]:
            return [(trial.number, trial.round) for trial in begun.trials("s", kind, finished)]

        assert keys() == [(0, 0), (2, 0), (2, 1), (10, 0)]
        assert keys(finished=True) == [(2, 0)]
        assert keys(finished=False) == [(0, 0), (2, 1), (10, 0)]
        assert keys(TrialKind.SEARCH) == [(0, 0), (10, 0)]
        assert keys(TrialKind.CONFIRM, finished=True) == []

    def test_trials_are_read_in_pages_of_numbers_with_all_their_rounds(self, begun: Store) -> None:
        for number, round in ((2, 0), (2, 1), (10, 0)):
            begun.add_trial(samples.pending(number, round))

        def page(after: int, most: int | None) -> list[tuple[int, int]]:
            return [(trial.number, trial.round) for trial in begun.trials("s", after=after, most=most)]

        assert page(-1, 2) == [(0, 0), (2, 0), (2, 1)]
        assert page(0, 1) == [(2, 0), (2, 1)]
        assert page(2, 5) == page(2, None) == [(10, 0)]
        assert page(10, 5) == page(2**31 - 1, 5) == []

    def test_verdicts_are_replaced_all_or_none(self, begun: Store) -> None:
        begun.add_trial(samples.pending(1))
        begun.finish_trial("s", 0, 0, samples.success(), samples.verdict(1.0))
        with pytest.raises(StorageError, match="trial 1 of study 's' has no outcome for a verdict"):
            begun.set_verdicts("s", {(0, 0): samples.verdict(2.0), (1, 0): samples.verdict(2.0)})
        assert begun.trials("s")[0].verdict == samples.verdict(1.0)
        new = Verdict({"p99_ttft_ms": None}, {}, None)
        begun.set_verdicts("s", {(0, 0): new})
        assert begun.trials("s")[0].verdict == new
        begun.set_verdicts("s", {})


class RetryContract(StoreFixture):
    """Failed attempts that are retried."""

    def test_a_retried_attempt_is_stored_beside_the_outcome(self, begun: Store) -> None:
        lost = samples.failed(FailureKind.WORKER_LOST, "the worker is gone")
        begun.record_failed_attempt("s", 0, 0, 1, lost)
        failure, began, ended = some(lost.failure), lost.started_at, lost.ended_at
        retried = FailedAttempt(0, 0, 1, failure, began, ended, "host:gpu1", "Tesla T4", "trials/1", {"launch": 9.0})
        assert begun.failed_attempts("s") == [retried]
        trial = some(begun.trial("s", 0))
        assert trial.outcome is None

        assert begun.begin_attempt("s", 0, 0) == 2
        begun.finish_trial("s", 0, 0, samples.success(), None)
        assert begun.failed_attempts("s") == [retried]
        trial = some(begun.trial("s", 0))
        assert trial.outcome == samples.success()

    def test_the_failure_of_the_last_attempt_is_the_outcome(self, begun: Store) -> None:
        begun.record_failed_attempt("s", 0, 0, 1, samples.failed(FailureKind.PORT_TAKEN))
        begun.begin_attempt("s", 0, 0)
        begun.record_failed_attempt("s", 0, 0, 2, samples.failed(FailureKind.GPU_BUSY))
        assert [row.attempt for row in begun.failed_attempts("s")] == [1, 2]
        begun.finish_trial("s", 0, 0, samples.failed(FailureKind.GPU_BUSY), None)
        assert [(row.attempt, row.failure.kind) for row in begun.failed_attempts("s")] == [(1, FailureKind.PORT_TAKEN)]
        trial = some(begun.trial("s", 0))
        assert trial.outcome == samples.failed(FailureKind.GPU_BUSY)

    def test_failed_attempts_are_ordered(self, begun: Store) -> None:
        begun.add_trial(samples.pending(1))
        begun.begin_attempt("s", 1, 0)
        begun.begin_attempt("s", 0, 0)
        for number, attempt in ((1, 1), (0, 2), (0, 1)):
            begun.record_failed_attempt("s", number, 0, attempt, samples.failed(FailureKind.PORT_TAKEN))
        assert [(row.number, row.attempt) for row in begun.failed_attempts("s")] == [(0, 1), (0, 2), (1, 1)]

    @pytest.mark.parametrize("attempt", [0, 2])
    def test_an_attempt_that_did_not_begin_cannot_fail(self, begun: Store, attempt: int) -> None:
        with pytest.raises(StorageError, match=f"attempt {attempt} of trial 0 .* has not begun: the last one is 1"):
            begun.record_failed_attempt("s", 0, 0, attempt, samples.failed())

    def test_a_failed_attempt_is_stored_once_and_needs_a_failure(self, begun: Store) -> None:
        with pytest.raises(StorageError, match="did not fail"):
            begun.record_failed_attempt("s", 0, 0, 1, samples.success())
        begun.record_failed_attempt("s", 0, 0, 1, samples.failed())
        with pytest.raises(StorageError, match="is stored already"):
            begun.record_failed_attempt("s", 0, 0, 1, samples.failed())


class OutboxContract(StoreFixture):
    """Which finished trials are logged to MLflow."""

    def test_a_finished_trial_is_unsynced_until_it_is_marked(self, begun: Store) -> None:
        assert begun.unsynced() == []
        with pytest.raises(StorageError, match="is not finished, so MLflow cannot contain it"):
            begun.mark_synced("s", 0, 0, "r")
        begun.finish_trial("s", 0, 0, samples.success(), None)
        assert [trial.outcome for trial in begun.unsynced("s")] == [samples.success()]
        begun.mark_synced("s", 0, 0, "r")
        assert begun.unsynced("s") == []

    def test_finished_and_synced_trials_of_a_study_are_counted(self, begun: Store) -> None:
        begun.create_study(samples.study("t"))
        for study, number in (("t", 0), ("s", 1), ("s", 2)):
            begun.add_trial(samples.pending(number, study=study))
            begun.finish_trial(study, number, 0, samples.success(), None)
        begun.mark_synced("t", 0, 0, "r")
        assert begun.logged_counts("s") == (0, 2)
        begun.mark_synced("s", 2, 0, "r")
        assert begun.logged_counts("s") == (1, 2)

    def test_a_synced_trial_keeps_its_run(self, begun: Store) -> None:
        begun.finish_trial("s", 0, 0, samples.success(), None)
        begun.mark_synced("s", 0, 0, "r")
        begun.mark_synced("s", 0, 0, "r")
        with pytest.raises(StorageError, match="already synced as run r"):
            begun.mark_synced("s", 0, 0, "other")

    def test_unsynced_trials_of_all_studies_or_of_one_up_to_a_limit(self, begun: Store) -> None:
        begun.create_study(samples.study("t"))
        for study, number in (("t", 0), ("s", 2), ("s", 1)):
            begun.add_trial(samples.pending(number, study=study))
            begun.finish_trial(study, number, 0, samples.success(), None)
        assert [(trial.study, trial.number) for trial in begun.unsynced()] == [("s", 1), ("s", 2), ("t", 0)]
        assert [trial.number for trial in begun.unsynced("s", limit=1)] == [1]
        assert len(begun.unsynced(limit=1)[0].outcome.repeats) == 2  # type: ignore[union-attr]


class StoreContract(
    StudyContract,
    TrialContract,
    RetryContract,
    OutboxContract,
    AnswersContract,
    LessonsContract,
    ProcessContract,
    SizeContract,
):
    """The whole contract."""
