"""The contract of the service's store on every supported database; a test module supplies the fixture `url`."""

import base64
import dataclasses
from collections.abc import Iterator

import pytest

from records.trials import ServerFacts
from storage import StorageError, open_store
from storage.service.errors import (
    InvalidCursor,
    SubmissionExists,
    TokenExists,
    UnknownSubmission,
    UnknownToken,
    WrongState,
)
from storage.service.records import ENDED, AuditEntry, Owner, Request, Role, Submission, SubmissionState
from storage.service.store import ServiceStore, open_service_store
from tests import store_samples as studies
from tests.service_samples import DRIVER, START, at, run, submission, token

S = SubmissionState
HUGE_ROWS = [base64.urlsafe_b64encode(f"1.{2**power}".encode()).decode().rstrip("=") for power in (31, 63, 70)]


class ServiceFixture:
    """Opens the service's store on the implementation's empty database."""

    @pytest.fixture
    def store(self, url: str) -> Iterator[ServiceStore]:
        """An open, empty store."""
        store = open_service_store(url)
        yield store
        store.close()


def present(store: ServiceStore, id: str = "s") -> Submission:
    found = store.submission(id)
    assert found is not None
    return found


def kinds(store: ServiceStore, id: str = "s") -> list[str]:
    """Return the kinds of a submission's events."""
    return [event.kind for event in store.events_after(id, 0)]


def in_state(store: ServiceStore, state: SubmissionState, id: str = "s") -> Submission:
    if state is S.QUEUED:
        return store.submit(submission(id))[0]
    run(store, id)
    if state in ENDED:
        return store.end(id, DRIVER, state, "why", None, at(60))
    if state is S.STOPPING:
        return store.request(id, Request.STOP, at(30))
    if state is S.CONCLUDING:
        return store.concluding(id, DRIVER, at(30))
    return present(store, id)


class SubmitContract(ServiceFixture):
    """New submissions."""

    def test_a_submission_is_queued_and_read_back(self, store: ServiceStore) -> None:
        asked = submission(priority=3, shared=True)
        stored, created = store.submit(asked)
        assert created
        assert stored == dataclasses.replace(asked, events=1)
        assert store.submission("s") == stored
        assert store.submission("t") is None
        (event,) = store.events_after("s", 0)
        assert (event.submission, event.number, event.at, event.kind) == ("s", 1, START, "queued")
        assert event.data == {"state": "QUEUED"}

    def test_an_equal_submission_returns_the_stored_one(self, store: ServiceStore) -> None:
        run(store)
        again, created = store.submit(submission(created_at=at(99), priority=5))
        assert not created
        assert (again.state, again.created_at, again.priority, again.granted) == (S.RUNNING, START, 0, ("d0", "d1"))
        assert kinds(store) == ["queued", "started"]

    @pytest.mark.parametrize(
        "change", [{"owner": "bob"}, {"settings": {"preset": "code"}}, {"kind": "cpu"}, {"gpus": 1}]
    )
    def test_another_submission_of_the_same_id_is_refused(self, store: ServiceStore, change: dict[str, object]) -> None:
        store.submit(submission())
        with pytest.raises(SubmissionExists, match="another study 's'; choose another id"):
            store.submit(dataclasses.replace(submission(), **change))  # type: ignore[arg-type]
        assert store.figures().states[S.QUEUED] == 1

    def test_only_what_is_asked_for_is_stored(self, store: ServiceStore) -> None:
        claims = {"state": S.DONE, "gpu_seconds": 5.0, "granted": ("d0",), "driver": DRIVER, "losses": 2, "runs": 4}
        stored, _ = store.submit(dataclasses.replace(submission(), **claims))  # type: ignore[arg-type]
        assert stored == dataclasses.replace(submission(), events=1)

    def test_a_value_that_cannot_be_stored_is_refused(self, store: ServiceStore) -> None:
        asked = dataclasses.replace(submission(), settings={"budget": float("inf")})
        with pytest.raises(StorageError, match=r"settings\.budget is inf"):
            store.submit(asked)
        assert store.submissions().submissions == ()

    def test_the_longest_names_are_stored(self, store: ServiceStore) -> None:
        id, owner = "é" * 512, "ü" * 512
        store.submit(submission(id, owner, kind="k" * 64))
        assert [each.id for each in store.submissions(owner=owner).submissions] == [id]


class ListContract(ServiceFixture):
    def ids(self, store: ServiceStore, **filters: object) -> list[str]:
        return [each.id for each in store.submissions(**filters).submissions]  # type: ignore[arg-type]

    def test_the_newest_come_first(self, store: ServiceStore) -> None:
        for id, seconds in (("a", 5), ("b", 9), ("c", 1), ("d", 9)):
            store.submit(submission(id, created_at=at(seconds)))
        assert self.ids(store) == ["d", "b", "a", "c"]

    def test_filters_combine(self, store: ServiceStore) -> None:
        for number, (id, owner, shared) in enumerate(
            [("x1", "ada", False), ("x2", "bob", True), ("y1", "bob", False), ("x3", "ada", True)]
        ):
            store.submit(submission(id, owner, shared=shared, created_at=at(number)))
        store.request("x3", Request.CANCEL, at(10))
        assert self.ids(store, owner="ada") == ["x3", "x1"]
        assert self.ids(store, readable_by="ada") == ["x3", "x2", "x1"]
        assert self.ids(store, readable_by="eve") == ["x3", "x2"]
        assert self.ids(store, readable_by="ada", owner="bob") == ["x2"]
        assert store.readable_of(["x3", "x1", "nobody"], "eve") == ["x3"]
        assert store.readable_of(["x3", "x1", "nobody"], None) == ["x1", "x3"]
        assert store.readable_of([], None) == []
        assert self.ids(store, states=[S.QUEUED]) == ["y1", "x2", "x1"]
        assert self.ids(store, states=[S.CANCELLED, S.DONE]) == ["x3"]
        assert self.ids(store, states=[]) == []
        assert self.ids(store, text="x", owner="ada", states={S.QUEUED}) == ["x1"]

    def test_text_is_no_pattern(self, store: ServiceStore) -> None:
        for number, id in enumerate(["a%b", "a_b", "axb", "A/B", "a\\b"]):
            store.submit(submission(id, created_at=at(number)))
        assert self.ids(store, text="%") == ["a%b"]
        assert self.ids(store, text="_") == ["a_b"]
        assert self.ids(store, text="a/b") == ["A/B"]
        assert self.ids(store, text="\\") == ["a\\b"]
        assert self.ids(store, text="AX") == ["axb"]
        assert len(self.ids(store, text="")) == 5

    def test_pages_show_each_submission_once_although_others_come_and_go(self, store: ServiceStore) -> None:
        for number in range(7):
            store.submit(submission(f"s{number}", created_at=at(number // 3)))  # several at one time
        first = store.submissions(limit=3)
        assert [each.id for each in first.submissions] == ["s6", "s5", "s4"]
        store.submit(submission("new", created_at=at(9)))
        store.request("s4", Request.CANCEL, at(9))
        store.delete("s4")
        second = store.submissions(limit=3, after=first.cursor)
        assert [each.id for each in second.submissions] == ["s3", "s2", "s1"]
        last = store.submissions(limit=3, after=second.cursor)
        assert [each.id for each in last.submissions] == ["s0"]
        assert last.cursor is None

    def test_a_full_last_page_has_no_cursor(self, store: ServiceStore) -> None:
        store.submit(submission())
        assert store.submissions(limit=1).cursor is None

    @pytest.mark.parametrize(
        "cursor", ["", "x", "é", "MTIz", "MS4yLjM", "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OS4x", *HUGE_ROWS, "a" * 9999]
    )
    def test_a_made_up_cursor_is_refused(self, store: ServiceStore, cursor: str) -> None:
        with pytest.raises(InvalidCursor, match="is not the cursor of a page; begin with the first page"):
            store.submissions(after=cursor)

    def test_settings_can_be_left_out(self, store: ServiceStore) -> None:
        store.submit(submission())
        assert [each.settings for each in store.submissions(with_settings=False).submissions] == [{}]
        assert [each.settings for each in store.submissions().submissions] == [submission().settings]


class RequestContract(ServiceFixture):
    """What people ask of submissions."""

    @pytest.mark.parametrize("request_", [Request.STOP, Request.CANCEL])
    def test_a_waiting_one_is_cancelled_at_once(self, store: ServiceStore, request_: Request) -> None:
        store.submit(submission())
        ended = store.request("s", request_, at(5))
        assert (ended.state, ended.ended_at, ended.request) == (S.CANCELLED, at(5), None)
        assert ended.reason == "ended on request before it started"
        assert store.events_after("s", 1)[0].data == {"state": "CANCELLED", "reason": ended.reason}

    def test_a_waiting_one_has_nothing_to_yield(self, store: ServiceStore) -> None:
        stored, _ = store.submit(submission())
        assert store.request("s", Request.YIELD, at(5)) == stored

    @pytest.mark.parametrize(
        ("before", "asked", "after"),
        [
            (None, Request.YIELD, Request.YIELD),
            (None, Request.STOP, Request.STOP),
            (None, Request.CANCEL, Request.CANCEL),
            (Request.YIELD, Request.STOP, Request.STOP),
            (Request.YIELD, Request.CANCEL, Request.CANCEL),
            (Request.STOP, Request.CANCEL, Request.CANCEL),
            (Request.STOP, Request.YIELD, Request.STOP),
            (Request.CANCEL, Request.YIELD, Request.CANCEL),
            (Request.CANCEL, Request.STOP, Request.CANCEL),
            (Request.STOP, Request.STOP, Request.STOP),
        ],
    )
    def test_the_stronger_request_stays(
        self, store: ServiceStore, before: Request | None, asked: Request, after: Request
    ) -> None:
        run(store)
        if before is not None:
            store.request("s", before, at(10))
        changed = store.request("s", asked, at(20))
        assert changed.request is after
        assert changed.state is (S.STOPPING if Request.STOP in (before, after) else S.RUNNING)
        assert store.beat("s", DRIVER, at(21)) is after
        expected = [each.value for each in (before, after) if each is not None]
        found = [event.data["request"] for event in store.events_after("s", 0) if event.kind == "requested"]
        assert found == (expected if before is not after else expected[:1])

    def test_a_concluding_one_can_be_stopped(self, store: ServiceStore) -> None:
        in_state(store, S.CONCLUDING)
        assert store.request("s", Request.STOP, at(40)).state is S.STOPPING
        assert store.events_after("s", 3)[0].data == {"request": "stop", "state": "STOPPING"}

    @pytest.mark.parametrize("state", sorted(ENDED))
    @pytest.mark.parametrize("request_", list(Request))
    def test_an_ended_one_refuses(self, store: ServiceStore, state: SubmissionState, request_: Request) -> None:
        before = in_state(store, state)
        with pytest.raises(WrongState, match=f"'s' is {state}: it has ended") as raised:
            store.request("s", request_, at(99))
        assert raised.value.state is state
        assert store.submission("s") == before

    @pytest.mark.parametrize("state", list(S))
    def test_only_three_states_can_be_resumed(self, store: ServiceStore, state: SubmissionState) -> None:
        before = in_state(store, state)
        if state not in (S.STOPPED, S.CANCELLED, S.FAILED):
            with pytest.raises(WrongState, match="only a submission in one of CANCELLED, FAILED, STOPPED can be"):
                store.resume("s", at(99))
            assert store.submission("s") == before
            return
        resumed = store.resume("s", at(99))
        assert (resumed.state, resumed.queued_at, resumed.ended_at, resumed.reason) == (S.QUEUED, at(99), None, None)
        assert (resumed.gpu_seconds, resumed.started_at, resumed.created_at) == (120.0, START, START)
        assert store.events_after("s", before.events)[0].data == {"state": "QUEUED", "resumed": True}

    def test_a_resumed_one_that_is_cancelled_says_that_it_had_run(self, store: ServiceStore) -> None:
        in_state(store, S.STOPPED)
        store.resume("s", at(99))
        assert store.request("s", Request.CANCEL, at(100)).reason == "ended on request while it waited"

    def test_sharing_and_priority_change(self, store: ServiceStore) -> None:
        store.submit(submission())
        assert store.share("s", True).shared
        assert not store.share("s", False).shared
        assert store.set_priority("s", 7, at(1)).priority == 7
        assert store.set_priority("s", 7, at(2)).events == 2
        assert store.events_after("s", 1)[0].data == {"priority": 7}

    def test_an_unknown_id_is_reported(self, store: ServiceStore) -> None:
        for change in (
            lambda: store.request("s", Request.STOP, START),
            lambda: store.resume("s", START),
            lambda: store.share("s", True),
            lambda: store.set_priority("s", 1, START),
            lambda: store.delete("s"),
            lambda: store.event("s", "trial", {}, START),
        ):
            with pytest.raises(UnknownSubmission, match="there is no study 's'"):
                change()


class DeleteContract(ServiceFixture):
    """Deletions."""

    @pytest.mark.parametrize("state", list(S))
    def test_only_an_ended_one_can_be_deleted(self, store: ServiceStore, state: SubmissionState) -> None:
        before = in_state(store, state)
        if state not in ENDED:
            with pytest.raises(WrongState, match="only an ended study can be deleted; cancel it first"):
                store.delete("s")
            assert store.submission("s") == before
            return
        store.delete("s")
        assert store.submission("s") is None
        assert store.events_after("s", 0) == []
        assert [use.gpu_seconds for use in store.uses(START)] == [120.0]

    def test_a_new_submission_of_a_deleted_id_begins_anew(self, store: ServiceStore) -> None:
        in_state(store, S.DONE)
        store.delete("s")
        stored, created = store.submit(submission(owner="bob"))
        assert created
        assert (stored.events, stored.gpu_seconds, kinds(store)) == (1, 0.0, ["queued"])

    def test_the_study_goes_with_it_and_no_other(self, store: ServiceStore, url: str) -> None:
        tables = open_store(url)
        for name in ("s", "t"):
            tables.create_study(studies.study(name))
            for number in range(3):
                tables.add_trial(studies.pending(number, study=name))
                tables.begin_attempt(name, number)
            tables.record_failed_attempt(name, 0, 0, 1, studies.failed())
            outcome = studies.success(studies.repeat(0), studies.repeat(1), server=ServerFacts(weights_gib=1.0))
            tables.finish_trial(name, 1, 0, outcome, studies.verdict())
            tables.mark_synced(name, 1, 0, f"run of {name}")
        others = tables.trials("t"), tables.failed_attempts("t")
        in_state(store, S.DONE)
        store.delete("s")
        assert tables.study("s") is None
        tables.create_study(studies.study("s"))
        assert (tables.trials("s"), tables.failed_attempts("s")) == ([], [])
        assert (tables.trials("t"), tables.failed_attempts("t")) == others
        tables.mark_synced("t", 1, 0, "run of t")  # refuses any other run
        tables.close()


class AccessContract(ServiceFixture):
    """Owners, tokens and the audit log."""

    def test_owners_are_replaced_and_come_by_name(self, store: ServiceStore) -> None:
        assert store.owners() == []
        store.set_owner(Owner("team b", 2.0, 4, 100.5))
        store.set_owner(Owner("ada"))
        store.set_owner(Owner("team b", 0.5, 0, None))
        assert store.owners() == [Owner("ada", 1.0, None, None), Owner("team b", 0.5, 0, None)]

    def test_a_token_is_found_by_its_digest(self, store: ServiceStore) -> None:
        first, second = token(expires_at=at(60)), token("ci", owner="bob", role=Role.VIEWER)
        for each in (first, second):
            store.add_token(each)
        assert store.token(first.digest) == first
        assert store.token(second.digest) == second
        assert store.token("0" * 64) is None
        assert store.tokens() == [first, second]

    def test_some_tokens_are_read_at_once(self, store: ServiceStore) -> None:
        revoked = token("ci", revoked_at=at(5))
        for each in (token(), revoked, token("phone")):
            store.add_token(each)
        wanted = {token().digest: token(), revoked.digest: revoked}
        assert store.tokens_of([*wanted, "0" * 64]) == wanted
        assert store.tokens_of([]) == {}

    def test_names_and_digests_of_tokens_are_unique(self, store: ServiceStore) -> None:
        store.add_token(token())
        for other in (token(digest="f" * 64), dataclasses.replace(token("other"), digest=token().digest)):
            with pytest.raises(TokenExists, match="there is already a token"):
                store.add_token(other)
        assert store.tokens() == [token()]

    def test_a_token_is_revoked_once(self, store: ServiceStore) -> None:
        store.add_token(token())
        assert store.revoke_token("laptop", at(5)).revoked_at == at(5)
        assert store.revoke_token("laptop", at(9)).revoked_at == at(5)
        assert store.token(token().digest) == token(revoked_at=at(5))
        with pytest.raises(UnknownToken, match="there is no token 'phone'"):
            store.revoke_token("phone", at(5))

    def test_the_last_use_only_grows(self, store: ServiceStore) -> None:
        store.add_token(token())
        for seconds in (5, 9, 7):
            store.touch_token("laptop", at(seconds))
        store.touch_token("unknown", at(5))
        assert store.tokens() == [token(used_at=at(9))]

    def test_old_entries_of_the_audit_log_are_deleted_a_few_at_a_time(self, store: ServiceStore) -> None:
        for second in range(5):
            store.audit(AuditEntry(at(second), "laptop", "ada", "submit", f"s{second}", "created"))
        assert [store.forget_audit(at(3), 2) for _ in range(3)] == [2, 1, 0]
        assert [entry.resource for entry in store.audit_log()] == ["s4", "s3"]

    def test_the_audit_log_is_read_from_the_newest(self, store: ServiceStore) -> None:
        entries = [
            AuditEntry(START, "laptop", "ada", "submit", "studies/s", "done", {"gpus": 2}),
            AuditEntry(at(1), None, None, "read", "studies/\x00\udcff\n", "no token"),
            AuditEntry(at(1), "ci", "bob", "stop", "studies/s", "forbidden"),
        ]
        for entry in entries:
            store.audit(entry)
        newest = store.audit_log(limit=2)
        assert [entry.action for entry in newest] == ["stop", "read"]
        assert newest[1].resource == "studies/\ufffd\ufffd\n"
        (oldest,) = store.audit_log(before=newest[1].number)
        assert dataclasses.replace(oldest, number=None) == entries[0]
        assert len(store.audit_log(before=10**30)) == 3
        assert store.audit_log(before=oldest.number) == []

    def test_details_that_are_not_json_are_refused(self, store: ServiceStore) -> None:
        with pytest.raises(StorageError, match=r"detail\.x is a set"):
            store.audit(AuditEntry(START, None, None, "read", "x", "done", {"x": {1}}))
        assert store.audit_log() == []
