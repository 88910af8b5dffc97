"""The contract of the service's store for schedulers and drivers: leases, starts, heartbeats, losses and ends."""

import dataclasses
from typing import Any

import pytest

from storage.service.errors import NotYours, UnknownSubmission
from storage.service.records import ENDED, Lease, Request, SubmissionState, Use
from storage.service.store import ServiceStore
from tests.contracts.service_contract import ServiceFixture, in_state, kinds, present
from tests.service_samples import DRIVER, OTHER, START, at, lease_of, run, submission

S = SubmissionState


class LeaseContract(ServiceFixture):
    """Leases."""

    def test_one_holder_has_it_until_it_expires(self, store: ServiceStore) -> None:
        assert store.take_lease("scheduler", "a", 10, START) == Lease("scheduler", "a", 1, at(10))
        assert store.take_lease("scheduler", "b", 10, at(9.9)) is None
        assert store.take_lease("scheduler", "a", 10, at(5)) == Lease("scheduler", "a", 1, at(15))
        assert store.take_lease("scheduler", "b", 10, at(14.9)) is None
        assert store.take_lease("scheduler", "b", 10, at(15)) == Lease("scheduler", "b", 2, at(25))
        assert store.take_lease("scheduler", "a", 10, at(20)) is None

    def test_a_late_renewal_that_nobody_forestalled_keeps_the_term(self, store: ServiceStore) -> None:
        store.take_lease("scheduler", "a", 10, START)
        assert store.take_lease("scheduler", "a", 10, at(100)) == Lease("scheduler", "a", 1, at(110))

    def test_a_released_lease_is_free_with_a_new_term(self, store: ServiceStore) -> None:
        lease = lease_of(store)
        store.release_lease(lease)
        assert store.take_lease("scheduler", "a", 10, at(1)) == Lease("scheduler", "a", 2, at(11))
        store.release_lease(lease)  # a stale one changes nothing
        assert store.take_lease("scheduler", "b", 10, at(2)) is None

    def test_leases_of_other_names_are_others(self, store: ServiceStore) -> None:
        lease_of(store)
        assert store.take_lease("webhooks", "b", 10, START) == Lease("webhooks", "b", 1, at(10))
        store.release_lease(Lease("unknown", "a", 1, at(10)))


class StartContract(ServiceFixture):
    def test_a_start_gives_devices_and_a_run(self, store: ServiceStore) -> None:
        store.submit(submission())
        assert store.start("s", ["d0", "d1"], lease_of(store), at(5))
        started = present(store)
        assert (started.state, started.granted, started.runs, started.run_began_at) == (
            *(S.RUNNING, ("d0", "d1"), 1, at(5)),
        )
        assert (started.started_at, started.driver, started.heartbeat_at) == (at(5), None, None)
        assert store.events_after("s", 1)[0].data == {"state": "RUNNING", "granted": ["d0", "d1"], "run": 1}

    @pytest.mark.parametrize("state", [state for state in S if state is not S.QUEUED])
    def test_only_a_queued_one_starts(self, store: ServiceStore, state: SubmissionState) -> None:
        before = in_state(store, state)
        assert not store.start("s", ["d9"], lease_of(store), at(99))
        assert store.submission("s") == before

    def test_an_unknown_one_does_not_start(self, store: ServiceStore) -> None:
        assert not store.start("s", ["d0"], lease_of(store), START)

    def test_a_lease_that_is_not_valid_any_more_starts_nothing(self, store: ServiceStore) -> None:
        before, _ = store.submit(submission())
        old = store.take_lease("scheduler", "a", 10, START)
        assert old is not None
        assert not store.start("s", ["d0"], old, at(10))  # expired
        new = store.take_lease("scheduler", "b", 10, at(10))
        assert new is not None
        assert not store.start("s", ["d0"], old, at(5))  # its clock is behind: the term tells
        assert not store.start("s", ["d0"], dataclasses.replace(old, term=new.term), at(11))
        assert not store.start("s", ["d0"], Lease("unknown", "a", 1, at(99)), at(11))
        store.release_lease(new)
        assert not store.start("s", ["d0"], new, at(11))
        assert store.submission("s") == before

    def test_the_scheduler_sees_what_runs_and_what_waits_without_settings(self, store: ServiceStore) -> None:
        for id, state in (("a", S.RUNNING), ("b", S.DONE), ("c", S.QUEUED), ("d", S.STOPPING), ("e", S.CONCLUDING)):
            in_state(store, state, id)
        found = store.active_and_queued()
        assert [each.id for each in found] == ["a", "c", "d", "e"]
        assert [dict(each.settings) for each in found] == [{}] * 4
        assert found[0] == dataclasses.replace(present(store, "a"), settings={})


class DriverContract(ServiceFixture):
    def test_a_driver_is_set_once(self, store: ServiceStore) -> None:
        store.submit(submission())
        store.start("s", ["d0"], lease_of(store), START)
        assert store.set_driver("s", DRIVER, at(2)).driver == DRIVER
        assert store.set_driver("s", DRIVER, at(3)).heartbeat_at == at(3)
        with pytest.raises(NotYours, match="'s' is RUNNING in run 1 and does not wait for this driver"):
            store.set_driver("s", OTHER, at(4))
        assert present(store).driver == DRIVER

    def test_the_driver_of_an_earlier_run_cannot_take_the_present_one(self, store: ServiceStore) -> None:
        store.submit(submission())
        lease = lease_of(store)
        store.start("s", ["d0"], lease, START)
        store.lost("s", None, lease, at(5), 3)
        with pytest.raises(NotYours, match="'s' is QUEUED in run 1"):
            store.set_driver("s", DRIVER, at(6), run=1)
        store.start("s", ["d1"], lease, at(7))
        with pytest.raises(NotYours, match="'s' is RUNNING in run 2"):
            store.set_driver("s", DRIVER, at(8), run=1)
        assert store.set_driver("s", OTHER, at(9), run=2).driver == OTHER

    def test_a_heartbeat_counts_the_devices_seconds(self, store: ServiceStore) -> None:
        run(store, began=10)
        assert store.beat("s", DRIVER, at(14)) is None
        assert (present(store).heartbeat_at, present(store).gpu_seconds) == (at(14), 8.0)
        store.beat("s", DRIVER, at(13))  # a clock that was set back
        assert present(store).gpu_seconds == 8.0
        store.beat("s", DRIVER, at(20))
        assert present(store).gpu_seconds == 20.0

    @pytest.mark.parametrize("field", ["host", "pid", "started", "boot"])
    def test_another_driver_changes_nothing(self, store: ServiceStore, field: str) -> None:
        run(store)
        before = present(store)
        changed: Any = 7 if field in ("pid", "started") else "other"
        other = dataclasses.replace(DRIVER, **{field: changed})
        for change in (
            lambda: store.beat("s", other, at(9)),
            lambda: store.concluding("s", other, at(9)),
            lambda: store.measured_all("s", other, at(9)),
            lambda: store.end("s", other, S.DONE, None, None, at(9)),
        ):
            with pytest.raises(NotYours, match="'s' is RUNNING and not of this driver any more; this driver ends"):
                change()
        assert store.submission("s") == before

    def test_a_driver_whose_run_is_over_is_told(self, store: ServiceStore) -> None:
        run(store)
        store.end("s", DRIVER, S.STOPPED, None, None, at(9))
        with pytest.raises(NotYours, match="'s' is STOPPED and not of"):
            store.beat("s", DRIVER, at(10))
        store.delete("s")
        with pytest.raises(NotYours, match="'s' was deleted; this driver ends"):
            store.beat("s", DRIVER, at(10))

    def test_a_driver_concludes(self, store: ServiceStore) -> None:
        run(store)
        assert store.concluding("s", DRIVER, at(5)).state is S.CONCLUDING
        store.concluding("s", DRIVER, at(6))
        assert kinds(store) == ["queued", "started", "concluding"]

    def test_a_stopping_one_stays_so_when_it_concludes(self, store: ServiceStore) -> None:
        in_state(store, S.STOPPING)
        assert store.concluding("s", DRIVER, at(40)).state is S.STOPPING

    def test_a_study_that_measures_nothing_more_gives_its_devices_back_and_goes_on(self, store: ServiceStore) -> None:
        run(store, began=10)
        for again in (20, 25):
            given = store.measured_all("s", DRIVER, at(again))
            assert (given.state, given.granted, given.driver) == (S.RUNNING, (), DRIVER)
        store.beat("s", DRIVER, at(30))
        assert kinds(store) == ["queued", "started", "measured"]
        ended = store.end("s", DRIVER, S.DONE, None, None, at(40))
        assert (ended.gpu_seconds, [use.gpu_seconds for use in store.uses(at(0))]) == (20.0, [20.0])

    @pytest.mark.parametrize("state", sorted(ENDED))
    @pytest.mark.parametrize("active", [S.RUNNING, S.STOPPING, S.CONCLUDING])
    def test_an_end_returns_the_devices_and_records_the_use(
        self, store: ServiceStore, active: SubmissionState, state: SubmissionState
    ) -> None:
        in_state(store, active)
        store.beat("s", DRIVER, at(50))
        culprit = "tuner" if state is S.FAILED else None
        ended = store.end("s", DRIVER, state, "why", culprit, at(60))
        assert (ended.state, ended.reason, ended.culprit, ended.ended_at) == (state, "why", culprit, at(60))
        assert (ended.granted, ended.driver, ended.request, ended.run_began_at) == ((), None, None, None)
        assert ended.gpu_seconds == 120.0
        assert store.uses(START) == [Use("ada", "s", "h200", START, at(60), 120.0)]
        (event,) = store.events_after("s", ended.events - 1)
        assert event.kind == state.value.lower()
        assert event.data == {"state": state.value, "reason": "why", **({"culprit": culprit} if culprit else {})}

    @pytest.mark.parametrize("request_", [None, Request.YIELD])
    def test_a_yield_queues_it_again(self, store: ServiceStore, request_: Request | None) -> None:
        run(store)
        if request_:
            store.request("s", request_, at(5))
        queued = store.end("s", DRIVER, S.QUEUED, "others wait", None, at(8))
        assert (queued.state, queued.queued_at, queued.reason) == (S.QUEUED, at(8), "others wait")
        assert (queued.request, queued.ended_at, queued.started_at, queued.granted) == (None, None, START, ())
        assert store.start("s", ["d7"], lease_of(store), at(20))
        store.set_driver("s", OTHER, at(20))
        ended = store.end("s", OTHER, S.DONE, None, None, at(30))
        assert (ended.gpu_seconds, ended.runs, ended.started_at) == (26.0, 2, START)
        assert [use.gpu_seconds for use in store.uses(START)] == [16.0, 10.0]

    def test_a_stop_that_a_yielding_driver_did_not_see_is_kept(self, store: ServiceStore) -> None:
        run(store)
        store.request("s", Request.STOP, at(5))
        queued = store.end("s", DRIVER, S.QUEUED, "others wait", None, at(8))
        assert (queued.state, queued.request) == (S.QUEUED, Request.STOP)
        assert store.request("s", Request.STOP, at(9)) == queued
        assert store.start("s", ["d0"], lease_of(store), at(20))
        assert (present(store).state, present(store).request) == (S.STOPPING, Request.STOP)

    def test_a_cancellation_that_a_yielding_driver_did_not_see_is_done(self, store: ServiceStore) -> None:
        run(store)
        store.request("s", Request.CANCEL, at(5))
        ended = store.end("s", DRIVER, S.QUEUED, "others wait", None, at(8))
        assert (ended.state, ended.ended_at, ended.request) == (S.CANCELLED, at(8), None)
        assert ended.reason == "ended on request while it gave its devices back"

    def test_a_waiting_one_with_a_stop_can_be_cancelled(self, store: ServiceStore) -> None:
        run(store)
        store.request("s", Request.STOP, at(5))
        store.end("s", DRIVER, S.QUEUED, None, None, at(8))
        assert store.request("s", Request.CANCEL, at(9)).state is S.CANCELLED

    def test_uses_are_those_that_ended_since(self, store: ServiceStore) -> None:
        for id, ended in (("a", 10), ("b", 20), ("c", 30)):
            run(store, id)
            store.end(id, DRIVER, S.DONE, None, None, at(ended))
        assert [use.submission for use in store.uses(at(20))] == ["b", "c"]


class LossContract(ServiceFixture):
    """Lost drivers."""

    def test_a_lost_driver_s_submission_is_queued_again(self, store: ServiceStore) -> None:
        lease = run(store)
        store.request("s", Request.YIELD, at(2))
        lost = store.lost("s", DRIVER, lease, at(30), 3)
        assert (lost.state, lost.losses, lost.reason) == (S.QUEUED, 1, "its driver was lost on gpu-1")
        assert (lost.granted, lost.driver, lost.request, lost.queued_at) == ((), None, None, at(30))
        assert store.uses(START) == [Use("ada", "s", "h200", START, at(30), 60.0)]
        (event,) = store.events_after("s", lost.events - 1)
        assert (event.kind, event.data) == (
            "lost",
            {"state": "QUEUED", "reason": lost.reason, "losses": 1, "host": "gpu-1"},
        )

    def test_a_driver_that_never_started_is_lost(self, store: ServiceStore) -> None:
        store.submit(submission())
        lease = lease_of(store)
        store.start("s", ["d0"], lease, START)
        lost = store.lost("s", None, lease, at(30), 3)
        assert (lost.state, lost.reason, lost.gpu_seconds) == (S.QUEUED, "its driver was lost before it started", 30.0)

    def test_the_last_loss_is_a_failure_of_the_infrastructure(self, store: ServiceStore) -> None:
        lease = run(store)
        store.lost("s", DRIVER, lease, at(10), 2)
        store.start("s", ["d0"], lease, at(20))
        store.set_driver("s", OTHER, at(21))
        failed = store.lost("s", OTHER, lease, at(30), 2)
        assert (failed.state, failed.culprit, failed.losses, failed.ended_at) == (S.FAILED, "infrastructure", 2, at(30))
        assert failed.reason == (
            "2 drivers were lost without a new trial in between; the last time its driver was lost on gpu-2"
        )
        assert store.resume("s", at(40)).losses == 0

    def test_progress_forgets_earlier_losses(self, store: ServiceStore) -> None:
        lease = run(store)
        store.lost("s", DRIVER, lease, at(10), 2)
        store.start("s", ["d0"], lease, at(20))
        store.set_driver("s", OTHER, at(21))
        store.progressed("s")
        assert store.lost("s", OTHER, lease, at(30), 2).state is S.QUEUED
        store.progressed("unknown")

    def test_a_request_outlives_its_driver(self, store: ServiceStore) -> None:
        lease = run(store)
        store.request("s", Request.STOP, at(5))
        stopped = store.lost("s", DRIVER, lease, at(10), 3)
        assert (stopped.state, stopped.request) == (S.QUEUED, Request.STOP)
        run(store, "t")
        store.request("t", Request.CANCEL, at(5))
        cancelled = store.lost("t", DRIVER, lease, at(10), 1)
        assert (cancelled.state, cancelled.request, cancelled.ended_at) == (S.CANCELLED, None, at(10))
        assert cancelled.reason == "ended on request; its driver was lost on gpu-1"

    @pytest.mark.parametrize("state", list(S))
    def test_nothing_is_lost_of_another_driver_or_without_the_lease(
        self, store: ServiceStore, state: SubmissionState
    ) -> None:
        before = in_state(store, state)
        lease = lease_of(store)
        stale = dataclasses.replace(lease, term=lease.term - 1)
        assert store.lost("s", OTHER, lease, at(99), 3) == before
        assert store.lost("s", DRIVER, stale, at(99), 3) == before
        if before.driver is not None:
            assert store.lost("s", None, lease, at(99), 3) == before

    def test_an_unknown_one_is_reported(self, store: ServiceStore) -> None:
        with pytest.raises(UnknownSubmission):
            store.lost("s", DRIVER, lease_of(store), at(1), 3)
