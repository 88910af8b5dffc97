"""The contract of the lessons of measured trials, on every supported database."""

from dataclasses import replace
from datetime import timedelta

import pytest

from records.lessons import Lesson, Site
from records.trials import Provenance
from storage import StorageError, Store
from storage.trials import delete_study
from tests import store_samples as samples
from tests.contracts.store_processes import StoreFixture

SITE = Site("node-1", "NVIDIA H200", "0.25.1", "/opt/vllm", "digest")
LESSON = Lesson(SITE, {"host_speed": -0.5}, {"p99_tpot_ms": 0.25}, {"p99_tpot_ms": {"host_speed": -0.75}})


class LessonsContract(StoreFixture):
    def taught(self, store: Store, *numbers: int) -> None:
        """Store a study with finished trials; trial n ended n seconds after the sample's end."""
        store.create_study(samples.study())
        for number in numbers:
            store.add_trial(samples.pending(number))
            ended = samples.success().ended_at + timedelta(seconds=number)
            store.finish_trial("s", number, 0, replace(samples.success(), ended_at=ended), samples.verdict())

    def read(self, store: Store, host: str = "node-1", **only: object) -> list[Lesson]:
        return store.lessons([host], "NVIDIA H200", "0.25.1", "digest", **only)  # type: ignore[arg-type]

    def test_lessons_come_back_in_the_order_of_their_trials(self, store: Store) -> None:
        self.taught(store, 1, 2)
        second = replace(LESSON, errors={"p99_tpot_ms": 0.5})
        store.add_lesson("s", 2, 0, second)
        store.add_lesson("s", 1, 0, LESSON)
        assert self.read(store) == [LESSON, second]
        assert self.read(store, most=1) == [second]
        assert self.read(store, before=samples.success().ended_at + timedelta(seconds=2)) == [LESSON]
        assert store.lessons_of("s") == {(1, 0): LESSON, (2, 0): second}

    def test_each_part_of_the_site_counts(self, store: Store) -> None:
        self.taught(store, 1, 2, 3, 4, 5)
        others = ({"host": "x"}, {"card": "x"}, {"version": "x"}, {"predictor": "x"}, {"installation": "x"})
        for number, other in enumerate(others, start=1):
            store.add_lesson("s", number, 0, replace(LESSON, site=replace(SITE, **other)))
        assert self.read(store, installation="/opt/vllm") == []
        assert [lesson.site.installation for lesson in self.read(store)] == ["x"]

    def test_a_lesson_is_replaced(self, store: Store) -> None:
        self.taught(store, 1)
        for error in (0.5, 0.25):
            store.add_lesson("s", 1, 0, replace(LESSON, errors={"p99_tpot_ms": error}))
        assert self.read(store) == [LESSON]

    def test_a_simulated_or_pending_trial_has_none(self, store: Store) -> None:
        store.create_study(samples.study("simulated", Provenance.SIMULATED))
        store.create_study(samples.study())
        for study in ("simulated", "s"):
            store.add_trial(samples.pending(0, study=study))
        outcome = samples.success(provenance=Provenance.SIMULATED)
        store.finish_trial("simulated", 0, 0, outcome, samples.verdict())
        for study in ("simulated", "s"):
            with pytest.raises(StorageError, match="not a measured one: nothing is learned from it"):
                store.add_lesson(study, 0, 0, LESSON)
        assert self.read(store) == []

    def test_lessons_are_deleted_with_their_study(self, store: Store) -> None:
        self.taught(store, 1)
        store.add_lesson("s", 1, 0, LESSON)
        with store._session(store._writer) as session:
            delete_study(session, "s")
        assert self.read(store) == []
