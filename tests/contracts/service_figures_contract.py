"""The contract of the service's figures on every supported database; a test module supplies the fixture `url`."""

from storage.service.records import SubmissionState
from storage.service.store import ServiceStore
from storage.service.watching.records import Figures, Waiting
from tests.contracts.service_contract import ServiceFixture, in_state
from tests.service_samples import DRIVER, at, run, submission

S = SubmissionState


class FigureContract(ServiceFixture):
    """The queue in numbers."""

    def test_an_empty_queue(self, store: ServiceStore) -> None:
        assert store.figures() == Figures(dict.fromkeys(SubmissionState, 0), {}, ())

    def test_the_queue_in_numbers(self, store: ServiceStore) -> None:
        for id, kind, second in (("a", "h200", 50), ("b", "h200", 40), ("c", "cpu", 60)):
            store.submit(submission(id, kind=kind, created_at=at(second)))
        run(store, "running", ("d0", "d1"))
        run(store, "again", ("d2",))
        store.end("again", DRIVER, S.QUEUED, None, None, at(30))
        in_state(store, S.DONE, "done")
        found = store.figures()
        assert {state: count for state, count in found.states.items() if count} == {
            S.QUEUED: 4,
            S.RUNNING: 1,
            S.DONE: 1,
        }
        assert set(found.states) == set(SubmissionState)
        assert found.waiting == {"h200": Waiting(3, at(30)), "cpu": Waiting(1, at(60))}
        assert found.granted == ("d0", "d1")
