"""The contract of the store of optimizations on every supported database; a test module supplies the fixture `url`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from storage import StorageError
from storage.service.errors import TooMany
from storage.service.optimizations.errors import (
    MissingMetric,
    NotOwner,
    NotYourTrial,
    OptimizationExists,
    StillActive,
    TooManyActive,
    TrialEnded,
    UnknownOptimization,
    UnknownTrial,
)
from storage.service.optimizations.records import (
    Beat,
    Beaten,
    ClientTrial,
    ClientTrialState,
    Draw,
    Finish,
    Finished,
    Operation,
    Optimization,
    OptimizationState,
    Proposal,
    Result,
    Suggest,
    Suggested,
)
from storage.service.store import ServiceStore, open_service_store
from tests.service_samples import START, at

S, T = OptimizationState, ClientTrialState


class Numbers:
    """Draws {"x": number}; without `draws` it leaves that to a model."""

    def __init__(self, draws: bool = True) -> None:
        self.specs: dict[int, Mapping[str, Any]] = {}
        self.draws = draws

    def knows(self, optimization: int) -> bool:
        return optimization in self.specs

    def learn(self, optimization: int, spec: Mapping[str, Any]) -> None:
        self.specs[optimization] = spec

    def objectives(self, optimization: int) -> list[str]:
        assert optimization in self.specs
        return ["loss"]

    def draw(self, optimization: int, number: int) -> Draw | None:
        assert optimization in self.specs
        return Draw({"x": number}) if self.draws else None


def optimization(id: str = "o", owner: str = "ada", **changes: Any) -> Optimization:
    """An optimization at the start, whose clients are lost after a minute."""
    fields = {"spec": {"space": {"x": [0, 1.5]}}, "created_at": START, "lost_after_s": 60.0, **changes}
    return Optimization(id, owner, **fields)


def suggest(client: str = "c", count: int = 1, id: str = "o", proposal: Proposal | None = None) -> Suggest:
    return Suggest(id, "ada", client, count, proposal)


def success(number: int, client: str = "c", value: float = 1.5, id: str = "o") -> Finish:
    return Finish(id, "ada", client, number, T.SUCCEEDED, {"loss": value}, {})


class OptimizationContract:
    """Opens the store on the implementation's empty database."""

    @pytest.fixture
    def store(self, url: str) -> Iterator[ServiceStore]:
        """An open store with the active optimization `o`."""
        store = open_service_store(url)
        store.create_optimization(optimization())
        yield store
        store.close()

    @pytest.fixture
    def run(self, store: ServiceStore) -> Callable[..., list[Result | StorageError]]:
        """Runs operations in one transaction, at a second after the start."""
        drawer = Numbers()

        def run(*operations: Operation, second: float = 0) -> list[Result | StorageError]:
            return list(store.apply(operations, drawer, at(second)))

        return run

    def test_an_optimization_is_stored_and_read_back(self, store: ServiceStore) -> None:
        new = optimization("new", most_trials=5, shared=True)
        stored, created = store.create_optimization(new)
        assert created
        assert stored == dataclasses.replace(new, row=stored.row)
        assert store.optimization("new") == stored
        assert store.optimization("other") is None

    def test_an_equal_one_returns_the_stored_one_and_another_one_is_refused(self, store: ServiceStore) -> None:
        stored, created = store.create_optimization(optimization(created_at=at(9)))
        assert (stored.created_at, created) == (START, False)
        changes: list[dict[str, Any]] = [{"owner": "bob"}, {"spec": {}}, {"lost_after_s": 61.0}, {"most_trials": 1}]
        for change in changes:
            with pytest.raises(OptimizationExists, match="another optimization 'o'; choose another id"):
                store.create_optimization(dataclasses.replace(optimization(), **change))
        with pytest.raises(StorageError, match="1 to 512 printable"):
            store.create_optimization(optimization(""))

    def test_pages_show_the_newest_first(self, store: ServiceStore) -> None:
        for id, owner, shared in (("p", "bob", False), ("q", "bob", True), ("r", "ada", False)):
            store.create_optimization(optimization(id, owner, shared=shared))
        page = store.optimizations(readable_by="ada", limit=2)
        assert [each.id for each in page.optimizations] == ["r", "q"]
        last = store.optimizations(readable_by="ada", limit=2, after=page.next)
        assert ([each.id for each in last.optimizations], last.next) == (["o"], None)
        assert [each.id for each in store.optimizations(owner="bob").optimizations] == ["q", "p"]
        assert page.optimizations[0].spec == {}
        assert store.optimizations(after=2**40).next is None

    def test_a_new_trial_belongs_to_its_client(self, store: ServiceStore, run: Any) -> None:
        (result,) = run(suggest(count=2))
        trials = tuple(ClientTrial(number, T.ACTIVE, "c", {"x": number}, None, 1, START, START) for number in (0, 1))
        present = store.optimization("o")
        assert present is not None
        assert result == Suggested(S.ACTIVE, trials, 0, 2, present.row)
        assert tuple(store.client_trials("o")) == trials
        assert (present.suggested, present.succeeded, present.infeasible) == (2, 0, 0)

    def test_a_client_gets_its_pending_trials_again(self, run: Any) -> None:
        (first,) = run(suggest(count=2))
        assert run(suggest(count=2))[0].trials == first.trials
        assert [trial.number for trial in run(suggest(count=3), second=5)[0].trials] == [0, 1, 2]
        assert [trial.number for trial in run(suggest(count=1))[0].trials] == [0]
        assert [trial.params for trial in run(suggest("d"))[0].trials] == [{"x": 3}]

    def test_operations_of_one_batch_happen_one_after_another(self, run: Any) -> None:
        results = run(suggest(), success(0), suggest(), suggest(), suggest("d"), Beat("o", "ada", "d"))
        assert [[trial.number for trial in each.trials] for each in results if isinstance(each, Suggested)] == [
            [0], [1], [1], [2],
        ]  # fmt: skip
        assert results[1] == Finished(0, T.SUCCEEDED)
        assert results[5] == Beaten(S.ACTIVE, (2,))

    def test_ends_are_stored(self, store: ServiceStore, run: Any) -> None:
        run(suggest(count=3))
        failed = Finish("o", "ada", "c", 2, T.INFEASIBLE, None, None, "out of memory\x00")
        assert run(success(1), failed, second=7) == [Finished(1, T.SUCCEEDED), Finished(2, T.INFEASIBLE)]
        trials = store.client_trials("o")
        assert [(each.state, each.ended, each.ended_at) for each in trials] == [
            (T.ACTIVE, None, None), (T.SUCCEEDED, 1, at(7)), (T.INFEASIBLE, 2, at(7)),
        ]  # fmt: skip
        assert (trials[1].metrics, trials[1].constraints, trials[2].reason) == ({"loss": 1.5}, {}, "out of memory�")
        assert trials[2].metrics is None
        assert store.measured("o") == [(1, {"loss": 1.5}, {})]
        present = store.optimization("o")
        assert present is not None
        assert (present.suggested, present.succeeded, present.infeasible) == (3, 1, 1)
        assert [each.number for each in store.client_trials("o", after=1, states=[T.INFEASIBLE])] == [2]
        assert [each.number for each in store.client_trials("o", limit=1)] == [0]

    def test_a_repeated_end_has_the_same_answer_and_another_one_is_refused(self, store: ServiceStore, run: Any) -> None:
        run(suggest())
        assert run(success(0)) == run(success(0), second=9) == [Finished(0, T.SUCCEEDED)]
        (error,) = run(success(0, value=2.5))
        assert isinstance(error, TrialEnded)
        assert store.client_trials("o")[0].ended_at == START

    def test_what_is_refused_changes_nothing(self, store: ServiceStore, run: Any) -> None:
        run(suggest())
        results = run(
            suggest(id="unknown"), Suggest("o", "bob", "c", 1), success(0, "d"), success(7), Beat("o", "eve", "c")
        )  # fmt: skip
        own, stranger = [UnknownOptimization], [NotYourTrial, UnknownTrial]
        assert [type(each) for each in results] == [*own, *own, *stranger, *own]
        store.share_optimization("o", True)
        (shared,) = run(Suggest("o", "bob", "c", 1))
        assert isinstance(shared, NotOwner)
        assert str(shared) == "the optimization 'o' is ada's; only its owner and admins change it"
        (lacking,) = run(Finish("o", "ada", "c", 0, T.SUCCEEDED, {"accuracy": 0.5}, {}))
        assert isinstance(lacking, MissingMetric)
        assert [each.state for each in store.client_trials("o")] == [T.ACTIVE]
        (admin,) = run(Suggest("o", None, "admin", 1))
        assert admin.trials[0].number == 1

    def test_trials_of_a_lost_client_are_handed_out_again(self, store: ServiceStore, run: Any) -> None:
        run(suggest("lost", 2), suggest("there"))
        run(Beat("o", "ada", "there"), second=59)
        assert [trial.number for trial in run(suggest("other"), second=60)[0].trials] == [3]
        (result,) = run(suggest("new", 3), second=61)
        taken = [(trial.number, trial.params["x"], trial.client, trial.attempts) for trial in result.trials]
        assert taken == [(0, 0, "new", 2), (1, 1, "new", 2), (4, 4, "new", 1)]
        (late,) = run(success(0, "lost"), second=61)
        assert isinstance(late, NotYourTrial)
        assert str(late) == "trial 0 of 'o' is the client 'new''s; its trials go to others without a heartbeat for 60 s"
        assert run(success(0, "new"), second=62) == [Finished(0, T.SUCCEEDED)]
        assert store.client_trials("o")[1].heartbeat_at == at(61)

    def test_a_late_client_keeps_a_trial_that_nobody_else_got(self, run: Any) -> None:
        run(suggest())
        assert run(success(0), second=9999) == [Finished(0, T.SUCCEEDED)]
        run(suggest())
        assert run(Beat("o", "ada", "c"), second=9999) == [Beaten(S.ACTIVE, (1,))]
        assert [trial.number for trial in run(suggest("d"), second=9999)[0].trials] == [2]

    def test_the_last_trial_completes_an_optimization(self, store: ServiceStore, run: Any) -> None:
        store.create_optimization(optimization("few", most_trials=2))
        (first,) = run(suggest(count=5, id="few"))
        assert [trial.number for trial in first.trials] == [0, 1]
        assert run(suggest("d", id="few"))[0].trials == ()
        run(success(0, id="few"))
        assert run(suggest("d", id="few"))[0].state is S.ACTIVE
        run(success(1, id="few"), second=3)
        present = store.optimization("few")
        assert present is not None
        assert (present.state, present.ended_at) == (S.COMPLETED, at(3))
        assert run(suggest("d", id="few"))[0] == Suggested(S.COMPLETED, (), 0, 2, present.row)

    def test_a_stopped_one_has_no_new_trials_and_active_ones_can_end(self, store: ServiceStore, run: Any) -> None:
        run(suggest(), suggest("lost"))
        stopped = store.stop_optimization("o", at(5))
        assert (stopped.state, stopped.ended_at) == (S.STOPPED, at(5))
        assert store.stop_optimization("o", at(9)) == stopped
        (own,) = run(suggest(count=4), second=100)
        assert ([trial.number for trial in own.trials], own.state) == ([0], S.STOPPED)
        assert run(success(0)) == [Finished(0, T.SUCCEEDED)]

    def test_only_an_ended_one_is_deleted(self, store: ServiceStore, run: Any) -> None:
        run(suggest())
        with pytest.raises(StillActive, match="'o' is active; stop it first"):
            store.delete_optimization("o")
        before = store.stop_optimization("o", at(1)).row
        store.delete_optimization("o")
        assert store.client_trials("o") == []
        with pytest.raises(UnknownOptimization):
            store.delete_optimization("o")
        assert store.create_optimization(optimization())[0].row > before
        assert run(suggest())[0].trials[0].number == 0

    def test_a_proposal_counts_only_for_the_trials_that_its_model_has_seen(self, store: ServiceStore) -> None:
        drawer = Numbers(draws=False)

        def run(*operations: Operation) -> list[Any]:
            return list(store.apply(operations, drawer, START))

        (asked,) = run(suggest(count=2))
        assert (asked.trials, asked.missing, asked.next) == ((), 2, 0)
        draws = [Draw({"x": 0.9}, {"x": 0.899999999}), Draw({"x": 0.2})]
        first, second = run(suggest("c", 2, proposal=Proposal(0, draws)), suggest("d", proposal=Proposal(0, draws)))
        assert [trial.sampled for trial in first.trials] == [{"x": 0.899999999}, None]
        assert (second.trials, second.missing, second.next) == ((), 1, 2)
        (late,) = run(suggest("d", proposal=Proposal(0, draws, late=True)))
        assert [(trial.number, trial.params) for trial in late.trials] == [(2, {"x": 0.9})]
        assert run(suggest("c", 2, proposal=Proposal(3, draws)))[0].trials == first.trials

    def test_a_reader_gets_what_has_changed(self, store: ServiceStore, run: Any) -> None:
        run(suggest(count=3))
        run(success(1))
        row = store.optimization("o").row  # type: ignore[union-attr]
        assert [each.number for each in store.changed_trials(row, 0, 0)] == [0, 1, 2]
        assert store.changed_trials(row, 3, 1) == []
        run(success(0), suggest(count=3))
        changed = store.changed_trials(row, 3, 1)
        assert [(each.number, each.state) for each in changed] == [(0, T.SUCCEEDED), (3, T.ACTIVE), (4, T.ACTIVE)]

    def test_too_many_active_trials_are_refused(self, run: Any) -> None:
        assert len(run(suggest(count=999))[0].trials) == 999
        assert [trial.number for trial in run(suggest("d", 5))[0].trials] == [999]
        (error,) = run(suggest("e"))
        assert isinstance(error, TooManyActive)
        assert str(error) == "1000 trials of 'o' are active, and 1000 are the most; complete some first"
        assert len(run(suggest("d", 5))[0].trials) == 1

    def test_sharing_is_changed(self, store: ServiceStore) -> None:
        assert store.share_optimization("o", True).shared
        with pytest.raises(UnknownOptimization):
            store.share_optimization("unknown", True)


class OptimizationRaceContract:
    """Clients that ask at once, each with a connection of its own."""

    def test_no_two_clients_get_the_same_trial_and_no_trial_is_lost(self, url: str) -> None:
        store = open_service_store(url)
        ids = ["o0", "o1", "o2"]
        for id in ids:
            store.create_optimization(optimization(id))

        def client(index: int) -> list[tuple[str, int]]:
            drawer, got = Numbers(), []
            for round in range(6):
                asked = [suggest(f"c{index}", 1 + index % 2, id) for id in ids[round % 2 :]]
                for each, found in zip(asked, store.apply(asked, drawer, START), strict=True):
                    assert isinstance(found, Suggested)
                    numbers = [trial.number for trial in found.trials]
                    again = store.apply([each], drawer, START)[0]
                    assert isinstance(again, Suggested)
                    assert [trial.number for trial in again.trials] == numbers
                    got += [(each.optimization, number) for number in numbers]
                    ends = [success(number, each.client, id=each.optimization) for number in numbers]
                    assert all(isinstance(end, Finished) for end in store.apply(ends + ends, drawer, START))
            return got

        with ThreadPoolExecutor(20) as pool:
            got = [each for own in pool.map(client, range(20)) for each in own]
        assert len(got) == len(set(got)) == 10 * (1 + 2) * (6 + 6 + 3)
        for id in ids:
            numbers = sorted(number for name, number in got if name == id)
            trials = store.client_trials(id)
            assert [trial.number for trial in trials] == numbers == list(range(len(numbers)))
            assert sorted(trial.ended or 0 for trial in trials) == list(range(1, len(numbers) + 1))
            present = store.optimization(id)
            assert present is not None
            assert (present.suggested, present.succeeded) == (len(numbers), len(numbers))
        store.close()

    def test_as_many_as_may_be_active_are_created(self, url: str) -> None:
        store = open_service_store(url)

        def create(index: int) -> bool:
            try:
                return store.create_optimization(optimization(f"o{index}"), 10)[1]
            except TooMany:
                return False

        with ThreadPoolExecutor(40) as pool:
            assert sum(pool.map(create, range(40))) == 10
        store.close()

    def test_one_of_many_takes_a_lost_trial_over(self, url: str) -> None:
        store = open_service_store(url)
        store.create_optimization(optimization())
        store.apply([suggest("lost")], Numbers(), START)
        with ThreadPoolExecutor(20) as pool:
            found = list(pool.map(lambda index: store.apply([suggest(f"c{index}")], Numbers(), at(61))[0], range(20)))
        numbers = [each.trials[0].number for each in found if isinstance(each, Suggested)]
        assert sorted(numbers) == list(range(20))
        store.close()
