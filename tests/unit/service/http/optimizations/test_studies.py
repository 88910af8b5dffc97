"""Optimizations in Optuna's tables, on both kinds of database: what a client may rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from typing import Any

import pytest

from storage.service.store import open_service_store
from tests.service_samples import START
from tuner.errors import SettingError
from tuner.service.http.optimizations import studies
from tuner.service.http.optimizations.models import CompleteBody, Optimization, OptimizationState
from tuner.service.http.optimizations.studies import Optimizations
from tuner.service.http.problems import Problem

SPACE = {"parameters": {"x": {"type": "float", "low": 0.0, "high": 1.0}}}
LOSS = {"metric": "loss", "direction": "minimize"}


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.program("postgresql"))])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """An empty database of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tuner.db"
    new: str = request.getfixturevalue("postgres").new_database()
    return new.replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture
def clock() -> Clock:
    """A clock that tests move."""
    return Clock()


@pytest.fixture
def opened(url: str, clock: Clock) -> Iterator[Callable[[], Optimizations]]:
    """Opens the database, each time as another process would."""
    with ExitStack() as stack:

        def opened() -> Optimizations:
            service = stack.enter_context(closing(open_service_store(url)))
            return stack.enter_context(closing(Optimizations(url, service, clock)))

        yield opened


@pytest.fixture
def store(opened: Callable[[], Optimizations]) -> Optimizations:
    """An open database with the optimization `o`, whose clients are lost after a minute."""
    store = opened()
    store.create(asked())
    return store


def asked(id: str = "o", owner: str = "ada", **changes: Any) -> Optimization:
    fields: dict[str, Any] = {"space": SPACE, "objectives": [LOSS], "sampler": "random", "lost_after_s": 60.0}
    return Optimization.model_validate({"id": id, "owner": owner, "created_at": START, **fields, **changes})


def numbers(store: Optimizations, client: str, count: int = 1, id: str = "o") -> list[int]:
    return [trial.number for trial in store.suggest(id, client, count).trials]


def measured(client: str = "c", loss: float = 1.5, **constraints: float) -> CompleteBody:
    return CompleteBody(client_id=client, metrics={"loss": loss}, constraints=constraints)


def test_a_repeated_creation_changes_nothing_and_another_content_is_refused(store: Optimizations) -> None:
    view, created = store.create(asked(created_at=START + timedelta(seconds=9)))
    assert (view.created_at, created) == (START, False)
    for change in ({"seed": 1}, {"lost_after_s": 61.0}, {"trials": 1}, {"space": "parameters: {x: {type: bool}}"}):
        with pytest.raises((Problem, SettingError)):
            store.create(asked(**change))
    with pytest.raises(SettingError, match="id='o': this id is taken"):
        store.create(asked(owner="bob"))
    assert store.find("other") is None


def test_an_owner_has_a_limited_number(store: Optimizations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "MOST_OWNED", 2)
    with ThreadPoolExecutor(6) as pool:

        def create(number: int) -> bool:
            try:
                return store.create(asked(f"o{number}"))[1]
            except SettingError:
                return False

        assert sum(pool.map(create, range(6))) == 1
    with pytest.raises(SettingError, match="ada has 2 optimizations, and that is the most; delete some first"):
        store.create(asked("more"))
    assert store.create(asked("bobs", "bob"))[1]


def test_pages_show_the_newest_first(store: Optimizations) -> None:
    for id, owner, shared in (("p", "bob", False), ("q", "bob", True), ("r", "ada", False)):
        store.create(asked(id, owner, shared=shared))
    page = store.page("ada", None, 2)
    assert [each.id for each in page.optimizations] == ["r", "q"]
    last = store.page("ada", page.next, 2)
    assert ([each.id for each in last.optimizations], last.next) == (["o"], None)
    assert [each.id for each in store.page(None, None, 9).optimizations] == ["r", "q", "p", "o"]


def test_a_client_gets_its_trials_again(store: Optimizations) -> None:
    first = store.suggest("o", "c", 2)
    assert store.suggest("o", "c", 2) == first
    assert numbers(store, "c", 3) == [0, 1, 2]
    assert numbers(store, "c") == [0]
    assert numbers(store, "d") == [3]
    assert store.trials("o", 0, 2) == store.trials("o", -1, 9)[1:3]


def test_a_repeated_end_has_the_same_answer_and_another_one_is_refused(store: Optimizations, clock: Clock) -> None:
    store.suggest("o", "c", 2)
    ended = store.complete("o", 0, measured())
    clock.now += timedelta(seconds=9)
    assert store.complete("o", 0, measured()) == ended
    assert (ended.ended_at, ended.metrics, ended.reason) == (START, {"loss": 1.5}, None)
    with pytest.raises(Problem, match="trial 0 of 'o' is SUCCEEDED with another result"):
        store.complete("o", 0, measured(loss=2.5))
    failed = store.complete("o", 1, CompleteBody(client_id="c", constraints={"memory": 0.2}))
    assert (failed.state, failed.constraints) == ("INFEASIBLE", {"memory": 0.2})
    view = store.view("o")
    assert (view.active, view.succeeded, view.infeasible) == (0, 1, 1)


def test_an_end_that_was_interrupted_is_repeated(store: Optimizations, monkeypatch: pytest.MonkeyPatch) -> None:
    store.suggest("o", "c", 1)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("optuna.storages.RDBStorage.set_trial_state_values", killed)
        with pytest.raises(KeyboardInterrupt):
            store.complete("o", 0, measured(memory=0.5))
    assert store.trials("o", -1, 9)[0].state == "ACTIVE"
    assert store.complete("o", 0, measured(memory=0.5)).constraints == {"memory": 0.5}
    assert store.best("o").front == []


def test_trials_of_a_lost_client_are_handed_out_again(store: Optimizations, clock: Clock) -> None:
    lost = store.suggest("o", "lost", 2).trials
    assert numbers(store, "there") == [2]
    clock.now += timedelta(seconds=59)
    assert numbers(store, "there") == [2]  # a sign of the client
    clock.now += timedelta(seconds=2)
    taken = store.suggest("o", "new", 3).trials
    assert [(each.number, each.attempts) for each in taken] == [(0, 2), (1, 2), (3, 1)]
    assert [each.params for each in taken[:2]] == [each.params for each in lost]
    with pytest.raises(Problem) as late:
        store.complete("o", 0, measured("lost"))
    assert str(late.value) == "trial 0 of 'o' is the client 'new''s; its trials go to others without a request for 60 s"
    assert store.complete("o", 0, measured("new")).client_id == "new"
    clock.now += timedelta(seconds=9999)
    assert store.complete("o", 2, measured("there")).state == "SUCCEEDED"  # nobody else has got it


def test_the_last_trial_completes_an_optimization(store: Optimizations) -> None:
    store.create(asked("few", trials=2))
    assert numbers(store, "c", 5, "few") == [0, 1]
    store.complete("few", 0, measured())
    assert store.suggest("few", "d", 1).state is OptimizationState.ACTIVE
    store.complete("few", 1, measured())
    done = store.suggest("few", "d", 1)
    assert (done.state, done.trials) == (OptimizationState.COMPLETED, [])


def test_clients_have_a_limited_number_of_trials(store: Optimizations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "MOST_ACTIVE", 3)
    assert numbers(store, "c", 2) == [0, 1]
    assert numbers(store, "d", 5) == [2]
    assert numbers(store, "e") == []


def test_a_deleted_one_is_created_anew(store: Optimizations, opened: Callable[[], Optimizations]) -> None:
    other = opened()
    assert numbers(other, "c", 2) == [0, 1]
    store.delete("o")
    with pytest.raises(Problem, match="there is no optimization 'o'"):
        store.suggest("o", "c", 1)
    store.create(asked(created_at=START + timedelta(seconds=1), seed=5))
    assert other.view("o").active == 0  # although SQLite gives the study the same number
    assert numbers(other, "d") == [0]


READS: dict[str, Callable[[Optimizations], object]] = {
    "view": lambda store: store.view("o"),
    "trials": lambda store: store.trials("o", -1, 9),
    "best": lambda store: store.best("o"),
}


@pytest.mark.parametrize("step", ["proposer_of", "_Open.trials"])
@pytest.mark.parametrize("name", READS)
def test_one_that_is_deleted_while_it_is_read_is_not_found(
    store: Optimizations, opened: Callable[[], Optimizations], monkeypatch: pytest.MonkeyPatch, name: str, step: str
) -> None:
    reader = opened()
    owner, attribute = (studies._Open, "trials") if step == "_Open.trials" else (studies, step)
    original = getattr(owner, attribute)

    def deleted_before(*arguments: object) -> object:
        store.delete("o")
        return original(*arguments)

    monkeypatch.setattr(owner, attribute, deleted_before)
    with pytest.raises(Problem, match="there is no optimization 'o'"):
        READS[name](reader)


def test_sharing_is_changed(store: Optimizations) -> None:
    assert store.share("o", True).shared
    assert [each.id for each in store.page("bob", None, 9).optimizations] == ["o"]


def test_two_processes_never_give_one_trial_twice(store: Optimizations, opened: Callable[[], Optimizations]) -> None:
    stores = (store, opened())

    def client(index: int) -> list[int]:
        got, name = [], f"c{index}"
        for _ in range(3):
            (number,) = numbers(stores[index % 2], name)
            assert numbers(stores[1 - index % 2], name) == [number]
            stores[index % 2].complete("o", number, measured(name))
            got.append(number)
        return got

    with ThreadPoolExecutor(6) as pool:
        got = [number for own in pool.map(client, range(6)) for number in own]
    assert sorted(got) == list(range(18))
    assert store.view("o").succeeded == 18


def test_one_of_many_takes_a_lost_trial_over(store: Optimizations, clock: Clock) -> None:
    numbers(store, "lost")
    clock.now += timedelta(seconds=61)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda index: numbers(store, f"c{index}"), range(6)))
    assert sorted(found) == [[number] for number in range(6)]


def test_the_best_trial_is_feasible(store: Optimizations) -> None:
    assert store.best("o").best is None
    store.suggest("o", "c", 4)
    for number, loss, memory in ((0, 5.0, -1), (1, 1.0, 0.5), (2, 3.0, 0), (3, 3.0, -1)):
        store.complete("o", number, measured(loss=loss, memory=memory))
    found = store.best("o")
    assert found.best is not None
    assert (found.best.number, found.best.metrics, found.front) == (2, {"loss": 3.0}, [2, 3])


def test_weights_choose_on_the_front(store: Optimizations) -> None:
    speed = {"metric": "speed", "direction": "maximize"}
    store.create(asked("two", objectives=[{**LOSS, "weight": 3}, speed]))
    store.suggest("two", "c", 4)
    for number, loss, rate in ((0, 4.0, 10.0), (1, 2.0, 10.0), (2, 4.0, 40.0), (3, 2.0, 5.0)):
        store.complete("two", number, CompleteBody(client_id="c", metrics={"loss": loss, "speed": rate}))
    found = store.best("two")
    # Over trial 0, trial 1 scores 2^(3/4) = 1.68 and trial 2 scores 4^(1/4) = 1.41.
    assert found.best is not None
    assert (found.best.number, found.front) == (1, [1, 2])


def test_an_incomplete_result_is_refused(store: Optimizations) -> None:
    store.suggest("o", "c", 1)
    with pytest.raises(Problem, match="the objective 'loss' is missing"):
        store.complete("o", 0, CompleteBody(client_id="c", metrics={"accuracy": 0.5}))
    assert store.trials("o", -1, 9)[0].state == "ACTIVE"
    with pytest.raises(Problem, match="the optimization 'o' has no trial 1"):
        store.complete("o", 1, measured())
