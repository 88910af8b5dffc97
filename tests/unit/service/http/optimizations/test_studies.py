"""Optimizations over HTTP: studies, proposals, several clients, and the example."""

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
import pytest

from records.metrics import Direction
from storage.service.store import open_service_store
from tests.empty_database import write_empty_database
from tests.postgres import PostgresServer
from tests.service_samples import START
from tests.some import some
from tests.unit.service.http.optimizations.api import LOSS, SPACE, Api, serving
from tuner.errors import SettingError
from tuner.scoring.goals import Objective
from tuner.service.http.optimizations import studies
from tuner.service.http.optimizations.models import CompleteBody, Optimization, OptimizationState
from tuner.service.http.optimizations.proposals import Proposer, read_space
from tuner.service.http.optimizations.studies import Optimizations
from tuner.service.http.problems import Problem
from tuner.study.optuna_study import residual_sampler

FLOATS = {"parameters": {"x": {"type": "float", "low": 0.0, "high": 1.0}}}
LEAST = {"metric": "loss", "direction": "minimize"}


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture(scope="module")
def tables(postgres: PostgresServer) -> str:
    """A PostgreSQL database with empty tables, the tuner's and Optuna's."""
    url = postgres.new_database()
    driven = url.replace("postgresql://", "postgresql+psycopg://")
    with closing(open_service_store(driven)) as service, closing(Optimizations(driven, service, Clock())):
        return url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.program("postgresql"))])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of either kind with empty tables."""
    if request.param == "sqlite":
        write_empty_database(tmp_path / "tuner.db")
        return f"sqlite:///{tmp_path}/tuner.db"
    new: str = request.getfixturevalue("postgres").new_database(template=request.getfixturevalue("tables"))
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
    fields: dict[str, Any] = {
        "space": FLOATS,
        "objectives": [LEAST],
        "sampler": "random",
        "lost_after_s": 60.0,
    }
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


def test_a_client_gets_its_trials_again(store: Optimizations) -> None:
    first = store.suggest("o", "c", 2)
    assert store.suggest("o", "c", 2) == first
    assert numbers(store, "c", 3) == [0, 1, 2]
    assert numbers(store, "c") == [0]
    assert numbers(store, "d") == [3]


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
    assert store.view("o").active == 1
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


def test_two_processes_never_give_one_trial_twice(store: Optimizations, opened: Callable[[], Optimizations]) -> None:
    stores = (store, opened())

    def client(index: int) -> list[int]:
        got, name = [], f"c{index}"
        for _ in range(2):
            (number,) = numbers(stores[index % 2], name)
            assert numbers(stores[1 - index % 2], name) == [number]
            stores[index % 2].complete("o", number, measured(name))
            got.append(number)
        return got

    with ThreadPoolExecutor(4) as pool:
        got = [number for own in pool.map(client, range(4)) for number in own]
    assert sorted(got) == list(range(8))
    assert store.view("o").succeeded == 8


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
    store.create(asked("two", objectives=[{**LEAST, "weight": 3}, speed]))
    store.suggest("two", "c", 4)
    for number, loss, rate in ((0, 4.0, 10.0), (1, 2.0, 10.0), (2, 4.0, 40.0), (3, 2.0, 5.0)):
        store.complete("two", number, CompleteBody(client_id="c", metrics={"loss": loss, "speed": rate}))
    found = store.best("two")
    # Over trial 0, trial 1 scores 2^(3/4) = 1.68 and trial 2 scores 4^(1/4) = 1.41.
    assert (some(found.best).number, found.front) == (1, [1, 2])


def test_an_incomplete_result_is_refused(store: Optimizations) -> None:
    store.suggest("o", "c", 1)
    with pytest.raises(Problem, match="the objective 'loss' is missing"):
        store.complete("o", 0, CompleteBody(client_id="c", metrics={"accuracy": 0.5}))
    assert store.view("o").active == 1
    with pytest.raises(Problem, match="the optimization 'o' has no trial 1"):
        store.complete("o", 1, measured())


FREE = SPACE[: SPACE.index("rules:")]
OBJECTIVES = (Objective("loss", Direction.MINIMIZE, 1.0),)


def loss(params: Mapping[str, Any]) -> float:
    return float(abs(params["batch"] - 20) + 10 * params["share"] + (3 if params["mode"] == "eager" else 0))


def plain(trials: int) -> list[Mapping[str, Any]]:
    """Return what the public sampler proposes in a plain study."""
    space = read_space(FREE)
    found: list[Mapping[str, Any]] = []
    study = optuna.create_study(sampler=residual_sampler(space, OBJECTIVES, None).with_seed(7))
    for _ in range(trials):
        trial = study.ask()
        found.append(space.suggest(trial))
        trial.set_constraint("failed", 0.0)
        study.tell(trial, loss(found[-1]))
    return found


def test_two_processes_suggest_what_a_plain_study_suggests(tmp_path: Path) -> None:
    found = []
    tokens: dict[str, str] = {}
    for part in range(2):
        with serving(tmp_path) as api:
            tokens = api.http.served.tokens = api.http.tokens or tokens
            api.create(space=FREE, sampler="residual", seed=7)
            for _ in range(6):
                (trial,) = api.suggest(f"c{part}")
                found.append(trial["params"])
                api.complete(trial["number"], f"c{part}", metrics={"loss": loss(trial["params"])})
    assert found == plain(12)


@pytest.mark.parametrize("sampler", ["residual", "tpe", "random"])
def test_trials_of_one_suggestion_differ_and_keep_the_rules(api: Api, sampler: str) -> None:
    api.create(sampler=sampler)
    first = api.suggest(count=12)
    for trial in first:
        api.complete(trial["number"], metrics={"loss": loss(trial["params"])})
    trials = api.suggest(count=6)
    assert len({str(trial["params"]) for trial in trials}) == 6
    for trial in first + trials:
        params = trial["params"]
        assert 1 <= params["batch"] <= 64
        assert ("graphs" in params) == (params["mode"] == "graph")
        assert not (params["batch"] > 32 and params["share"] > 0.8)


def test_random_configurations_follow_proposals_that_break_a_rule() -> None:
    odd = {"name": "odd", "forbid": "x // 8 * 8 != x", "why": "no multiple of 8"}
    space = read_space({"parameters": {"x": {"type": "int", "low": 1, "high": 64}}, "rules": [odd]})
    _, config = Proposer(space, OBJECTIVES, "tpe", 0).propose([])
    assert config["x"] in range(8, 65, 8)


def test_rules_that_exclude_everything_are_an_error() -> None:
    rules = [{"name": "all", "forbid": "x >= 1", "why": "no"}]
    space = read_space({"parameters": {"x": {"type": "int", "low": 1, "high": 9}}, "rules": rules})
    for sampler in ("random", "tpe", "residual"):
        with pytest.raises(SettingError, match="the rules exclude 500 of 500 configurations that were drawn"):
            Proposer(space, OBJECTIVES, sampler, 0).propose([])


def test_the_residual_sampler_avoids_what_is_infeasible(api: Api) -> None:
    api.create(space={"parameters": {"x": {"type": "float", "low": 0.0, "high": 1.0}}}, sampler="residual")
    states = []
    for _ in range(25):
        (trial,) = api.suggest()
        x = trial["params"]["x"]
        result = {"reason": "out of memory"} if x > 0.5 else {"metrics": {"loss": -x}}
        states.append(api.complete(trial["number"], **result)["state"])
    assert states[15:].count("SUCCEEDED") >= 7
    assert api.get("/o:best")["best"]["params"]["x"] > 0.45


def test_a_client_runs_trials_until_an_optimization_is_complete(api: Api) -> None:
    created = api.create(trials=2)
    assert (created["state"], created["trials"], created["sampler"]) == ("ACTIVE", 2, "random")
    first, second = api.suggest(count=3)
    assert (first["number"], first["attempts"], first["state"]) == (0, 1, "ACTIVE")
    one = api.complete(0, metrics={"loss": 2.5, "seconds": 3})
    two = api.complete(1, reason="out of memory")
    found = api.get("/o")
    assert [found[name] for name in ("state", "active", "succeeded", "infeasible")] == ["COMPLETED", 0, 1, 1]
    assert api.post("/o:suggest", {"client_id": "c"}) == {"state": "COMPLETED", "trials": []}
    assert (one["state"], two["state"]) == ("SUCCEEDED", "INFEASIBLE")
    assert (one["params"], one["metrics"], one["client_id"]) == (first["params"], {"loss": 2.5, "seconds": 3}, "c")
    assert (two["params"], two["metrics"], two["reason"]) == (second["params"], {}, "out of memory")


def test_a_space_as_json_needs_no_descriptions(api: Api) -> None:
    space = {"parameters": {"x": {"type": "float", "low": 0.0, "high": 1.0, "step": 0.25}}}
    api.create(space=space)
    assert {trial["params"]["x"] for trial in api.suggest(count=20)} == {0.0, 0.25, 0.5, 0.75, 1.0}


def test_only_the_owner_and_admins_find_an_optimization(api: Api) -> None:
    api.create()
    ask = {"client_id": "c"}
    for method, path, body in (
        ("GET", "/o", None),
        ("GET", "/o:best", None),
        ("DELETE", "/o", None),
        ("POST", "/o:suggest", ask),
        ("POST", "/o/trials/0:complete", {**ask, "metrics": {"loss": 1}}),
    ):
        assert api.problem(path, body, "ben", method)["status"] == 404
    assert api.problem("", {"id": "o", "space": "x", "objectives": LOSS}, "eve")["status"] == 403
    assert api.post("/o:suggest", ask, "root")["trials"][0]["number"] == 0
    api.http.tokens["nobody"] = f"tnr_{'0' * 64}"
    for call in ("/o:suggest", "/o/trials/0:complete"):
        assert api.problem(call, ask, "nobody")["status"] == 401
    assert api.call("DELETE", "/o").status_code == 204
    assert api.call("GET", "/o").status_code == 404
    actions = [entry.action for entry in api.http.service.audit_log() if entry.action.endswith(" optimization")]
    assert actions == ["delete optimization", "create optimization"]


@pytest.mark.parametrize(
    ("change", "field", "part"),
    [
        ({"id": "A b"}, "id", "lower-case letters"),
        ({"space": "parameters: [1"}, "space", "space:1: not valid YAML"),
        ({"space": {"parameters": {}}}, "space", "the space has no parameters"),
        ({"space": {"include": ["/etc/passwd"]}}, "space", "a text can include no file; write all in one"),
        ({"space": {"parameters": {"x": {"type": "int", "low": 3, "high": 1}}}}, "space", "low 3 is above high 1"),
        ({"space": 3}, "space.str", "valid string"),
        ({"objectives": []}, "objectives", "at least 1 item"),
        ({"objectives": LOSS * 2}, "objectives", "the metric is there twice"),
        ({"objectives": [{"metric": "a", "direction": "up"}]}, "objectives.0.direction", "'maximize' or 'minimize'"),
        ({"objectives": [{**LOSS[0], "weight": 0}]}, "objectives.0.weight", "greater than 0"),
        ({"sampler": "gp"}, "sampler", "'random', 'tpe' or 'residual'"),
        ({"trials": 10_001}, "trials", "less than or equal to 10000"),
        ({"space": "x" * 65_537}, "space", "a space has at most 65,536 bytes"),
        ({"trials": 0}, "trials", "greater than or equal to 1"),
        ({"lost_after_s": 1}, "lost_after_s", "greater than or equal to 10"),
        ({"secret": 1}, "secret", "extra inputs"),
    ],
)
def test_a_bad_optimization_is_refused_with_its_field(
    refusing: Api, change: dict[str, Any], field: str, part: str
) -> None:
    new = {"id": "o", "space": {"parameters": {"x": {"type": "int", "low": 1, "high": 3}}}, "objectives": LOSS}
    found = refusing.problem("", {**new, **change})
    assert (found["status"], found["field"]) == (422, field)
    assert part in found["rule"]
    assert refusing.call("GET", "/o").status_code == 404


def test_rules_that_exclude_everything_are_refused(api: Api) -> None:
    space = {
        "parameters": {"x": {"type": "int", "low": 1, "high": 3}},
        "rules": [{"name": "all", "forbid": "x > 0", "why": "no"}],
    }
    found = api.problem("", {"space": space, "objectives": LOSS})
    assert (found["status"], found["field"]) == (422, "space")
    assert "the rules exclude 500 of 500 configurations" in found["detail"]


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/begun:suggest", {}, 422, "client_id"),
        ("/begun:suggest", {"client_id": ""}, 422, "client_id"),
        ("/begun:suggest", {"client_id": "c", "count": 0}, 422, "count"),
        ("/begun:suggest", {"client_id": "c", "count": 51}, 422, "count"),
        ("/unknown:suggest", {"client_id": "c"}, 404, None),
        ("/begun/trials/9:complete", {"client_id": "c", "metrics": {"loss": 1}}, 404, None),
        ("/begun/trials/x:complete", {"client_id": "c", "metrics": {"loss": 1}}, 422, "number"),
        ("/begun/trials/99999999999:complete", {"client_id": "c", "metrics": {"loss": 1}}, 422, "number"),
        ("/begun/trials/0:complete", {"client_id": "c"}, 422, "body"),
        ("/begun/trials/0:complete", {"client_id": "c", "metrics": {"other": 1}}, 422, "metrics.loss"),
        ("/begun/trials/0:complete", {"client_id": "c", "metrics": {"loss": "low"}}, 422, "metrics.loss"),
        ("/begun/trials/0:complete", {"client_id": "c", "constraints": {"memory": 0}}, 422, "body"),
        ("/begun/trials/0:complete", {"client_id": "c", "reason": ""}, 422, "reason"),
    ],
)
def test_a_bad_request_of_a_client_is_refused(
    refusing: Api, path: str, body: Any, status: int, field: str | None
) -> None:
    refusing.create("begun")
    refusing.suggest(id="begun")
    found = refusing.problem(path, body)
    assert (found["status"], found.get("field")) == (status, field)
    assert refusing.get("/begun")["active"] == 1


def test_a_space_that_no_answer_can_contain_is_refused(api: Api) -> None:
    for value in (r'"\udc80"', "NaN"):
        content = (
            f'{{"id": "o", "objectives": [{{"metric": "a", "direction": "maximize"}}], "space": {{"x": {value}}}}}'
        )
        headers = {"Authorization": f"Bearer {api.http.tokens['ada']}", "Content-Type": "application/json"}
        answer = api.http.client.post("/v1/optimizations", content=content, headers=headers)
        assert (answer.status_code, answer.json()["field"]) == (422, "space")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_are_finite(refusing: Api, text: str) -> None:
    refusing.create("begun")
    refusing.suggest(id="begun")
    answer = refusing.http.client.post(
        "/v1/optimizations/begun/trials/0:complete",
        content=f'{{"client_id": "c", "metrics": {{"loss": {text}}}}}',
        headers={"Authorization": f"Bearer {refusing.http.tokens['ada']}", "Content-Type": "application/json"},
    )
    assert (answer.status_code, answer.json()["field"]) == (422, "metrics.loss")


EXAMPLE = Path(__file__).parents[5] / "docs" / "examples" / "optimization_client.py"


def test_the_example_finds_the_best_trial(api: Api) -> None:
    spec = some(importlib.util.spec_from_file_location("optimization_client", EXAMPLE))
    example: Any = importlib.util.module_from_spec(spec)
    some(spec.loader).exec_module(example)
    api.http.client.headers["Authorization"] = f"Bearer {api.http.tokens['ada']}"
    found = example.run(api.http.client, "a", example.measure)
    present = api.get("/compression")
    assert (present["state"], present["trials"], present["active"]) == ("COMPLETED", 20, 0)
    assert found["best"]["number"] in found["front"]
    assert found["best"]["metrics"] == example.measure(found["best"]["params"])
