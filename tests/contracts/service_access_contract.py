"""The contract of the service's store for owners, tokens and the audit log."""

import dataclasses

import pytest

from storage import StorageError
from storage.service.errors import TokenExists, UnknownToken
from storage.service.records import AuditEntry, Owner, Role
from storage.service.store import ServiceStore
from tests.contracts.service_contract import ServiceFixture
from tests.service_samples import START, at, token


class AccessContract(ServiceFixture):
    """Owners, tokens and the audit log."""

    def test_owners_are_replaced_and_come_by_name(self, store: ServiceStore) -> None:
        assert store.owners() == []
        store.set_owner(Owner("team b", 2.0, 4, 100.5))
        store.set_owner(Owner("ada"))
        store.set_owner(Owner("team b", 0.5, 0, None))
        assert store.owners() == [Owner("ada", 1.0, None, None), Owner("team b", 0.5, 0, None)]

    @pytest.mark.parametrize(
        ("owner", "rule"),
        [
            (Owner(""), "an owner's name has 1 to 512 printable characters"),
            (Owner("a", weight=0.0), "the weight of 'a' is 0: it is a number above 0"),
            (Owner("a", weight=float("nan")), "the weight of 'a' is nan"),
            (Owner("a", most_gpus=-1), "a quota of 'a' is -1: it is 0 or more, or None"),
            (Owner("a", gpu_hours_a_week=float("inf")), "a quota of 'a' is inf"),
        ],
    )
    def test_an_impossible_owner_is_refused(self, store: ServiceStore, owner: Owner, rule: str) -> None:
        with pytest.raises(StorageError, match=rule):
            store.set_owner(owner)
        assert store.owners() == []

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
