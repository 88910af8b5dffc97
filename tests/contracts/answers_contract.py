"""The contract of what servers answered, on every supported database."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from records.answers import AnswersKey, AnswersRecord
from storage import StorageError, Store
from tests.contracts.store_processes import StoreFixture

KEY = AnswersKey("weights", ("--quantization", "fp8"), "vllm 0.32.0", "NVIDIA H200", "asked")
RECORD = AnswersRecord(
    KEY, "org/model", datetime(2026, 11, 24, 12, tzinfo=UTC), 61.5, {"positions": [[[7, -0.25]]], "right": [True]}
)


class AnswersContract(StoreFixture):
    def test_stored_answers_are_read_back_unchanged(self, store: Store) -> None:
        assert store.answers(KEY) is None
        store.add_answers(RECORD)
        assert store.answers(KEY) == RECORD

    def test_each_part_of_the_key_counts(self, store: Store) -> None:
        store.add_answers(RECORD)
        others = (
            replace(KEY, weights="x"),
            replace(KEY, engine="x"),
            replace(KEY, device="x"),
            replace(KEY, asked="x"),
            replace(KEY, formats=("--quantization fp8",)),
        )
        assert [store.answers(other) for other in others] == [None] * 5

    def test_answers_are_replaced(self, store: Store) -> None:
        store.add_answers(RECORD)
        newer = replace(RECORD, seconds=50.0, answers={"positions": []})
        store.add_answers(newer)
        assert store.answers(KEY) == newer

    def test_a_value_that_is_not_json_is_refused(self, store: Store) -> None:
        with pytest.raises(StorageError):
            store.add_answers(replace(RECORD, answers={"positions": float("nan")}))
        assert store.answers(KEY) is None
