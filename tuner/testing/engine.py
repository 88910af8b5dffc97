"""The contract of every engine. A suite subclasses `EngineContract` and defines the two fixtures below."""

from __future__ import annotations

import threading

import pytest

from records.metrics import METRICS
from records.trials import Phase
from tuner.engines.base import Engine
from tuner.errors import TrialFailed
from tuner.specs import TrialSpec
from tuner.workloads.spec import ClosedLoop

NEVER = threading.Event()


def _set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


class EngineContract:
    """The obligations of `Engine` and `Server`.

    Fixtures to give: `engine`; `good_spec`, a trial that works; `failing_spec`, one that passes the check and whose
    server fails to start.
    """

    def test_info_is_the_same_every_time(self, engine: Engine) -> None:
        info = engine.info()
        assert info == engine.info()
        assert info.name
        assert info.version

    def test_a_good_trial_goes_all_the_way(self, engine: Engine, good_spec: TrialSpec) -> None:
        assert engine.check(good_spec) is None
        workload = good_spec.workload
        assert isinstance(workload, ClosedLoop)
        server = engine.launch(good_spec, good_spec.limits)
        try:
            server.wait_ready(NEVER)
            server.warm_up(workload, NEVER)
            repeats = [server.benchmark(workload, index, NEVER) for index in range(2)]
            server.facts()
        finally:
            first = server.stop()
        assert first is None
        assert server.stop() is None
        offered = workload.num_prompts
        assert [repeat.index for repeat in repeats] == [0, 1]
        assert [repeat.seed for repeat in repeats] == [workload.repeat_seed(index) for index in range(2)]
        for repeat in repeats:
            assert (repeat.offered, repeat.completed, repeat.failed) == (offered, offered, 0)
            assert set(repeat.metrics) <= set(METRICS)
            assert repeat.metrics["success_rate"] == 1.0
            assert (repeat.metrics["output_throughput"] or 0) > 0

    def test_the_server_reports_its_arguments(self, engine: Engine, good_spec: TrialSpec) -> None:
        server = engine.launch(good_spec, good_spec.limits)
        try:
            assert good_spec.launch.model.name in server.argv
            assert set(good_spec.launch.argv) <= set(server.argv)
            assert good_spec.launch.environment.items() <= server.environment.items()
        finally:
            server.stop()

    def test_a_start_that_fails_is_typed_and_can_be_stopped(self, engine: Engine, failing_spec: TrialSpec) -> None:
        server = engine.launch(failing_spec, failing_spec.limits)
        try:
            with pytest.raises(TrialFailed) as caught:
                server.wait_ready(NEVER)
        finally:
            stopped = server.stop()
        assert caught.value.failure.phase is Phase.READY
        assert caught.value.failure.message
        assert stopped is None

    def test_a_cancelled_wait_ends(self, engine: Engine, good_spec: TrialSpec) -> None:
        server = engine.launch(good_spec, good_spec.limits)
        try:
            with pytest.raises(TrialFailed) as caught:
                server.wait_ready(_set())
        finally:
            server.stop()
        assert caught.value.failure.kind == "cancelled"

    def test_a_cancelled_benchmark_ends(self, engine: Engine, good_spec: TrialSpec) -> None:
        workload = good_spec.workload
        assert isinstance(workload, ClosedLoop)
        server = engine.launch(good_spec, good_spec.limits)
        try:
            server.wait_ready(NEVER)
            with pytest.raises(TrialFailed) as caught:
                server.benchmark(workload, 0, _set())
        finally:
            server.stop()
        assert caught.value.failure.kind == "cancelled"

    def test_one_engine_runs_one_server_after_another(self, engine: Engine, good_spec: TrialSpec) -> None:
        for _ in range(2):
            server = engine.launch(good_spec, good_spec.limits)
            try:
                server.wait_ready(NEVER)
            finally:
                assert server.stop() is None

    def test_close_may_be_called_twice(self, engine: Engine) -> None:
        engine.close()
        engine.close()
