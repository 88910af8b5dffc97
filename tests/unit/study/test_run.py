"""Whole studies on a stub engine: order, budget, retries, resuming, refusals, confirmation."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from records.trials import Failure, FailureKind, Phase, Provenance, TrialKind, TrialRecord
from search_spaces import SpaceError
from tests.fakes.stub_engine import StubEngine
from tests.some import some
from tests.unit.study.conftest import Bench
from tuner.clock import RealClock
from tuner.engines.base import EngineInfo
from tuner.errors import UserError
from tuner.sampler.encoding import Params
from tuner.sampler.prior import Prediction
from tuner.settings.study import AUTO, RESIDUAL, TPE
from tuner.specs import TrialSpec
from tuner.study import learned_prior
from tuner.study.loop import longest_confirmation_s
from tuner.study.protocols import RunEnding
from tuner.study.run import open_study
from tuner.study.specification.spec import Enqueued, ServerSettings, difference, with_stored_settings
from tuner.workloads.spec import ClosedLoop
from tuner.workloads.traffic import load_traffic

FIGURES = {"success_rate": 1.0, "p99_tpot_ms": 10.0}


def peak_at_16(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
    """Throughput 1000 for the defaults, 1500 at max_num_seqs 16, falling with the distance from it."""
    seqs = spec.config.get("max_num_seqs")
    if seqs is None:
        return {**FIGURES, "output_throughput": 1000.0 + index}
    assert isinstance(seqs, int)
    return {**FIGURES, "output_throughput": 1500.0 - 20.0 * abs(seqs - 16)}


def worse(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
    """Nothing is better than the defaults."""
    return {**FIGURES, "output_throughput": 1000.0 if not spec.config else 900.0}


def test_the_sampler_of_each_run_is_stored(bench: Bench) -> None:
    found = []
    for sampler in (AUTO, TPE):
        bench.run(peak_at_16, trials=1, sampler=sampler)
        store = bench.store()
        known = store.study("s")
        store.close()
        found.append(None if known is None else known.facts["sampler"])
    assert found == [RESIDUAL, TPE]


def test_a_short_study_begins_with_fewer_predictions(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    predicted: list[Params] = []
    known: list[int] = []

    def prior(params: Params) -> Prediction:
        predicted.append(params)
        return Prediction((1000.0, 10.0), {})

    def landscape(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        known.extend([len(predicted)] if spec.config else [])
        return peak_at_16(spec, index)

    monkeypatch.setattr(learned_prior, "simulator_prior", lambda *_: prior)
    bench.run(landscape, trials=2, confirm_rounds=0)
    assert 2 * 10 <= known[0] <= 2 * 10 + 10  # and the suggestion's own, at most ten


def test_rounds_with_a_longer_workload_are_scored_against_the_defaults_of_a_round(bench: Bench) -> None:
    def faster_when_whole(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        assert isinstance(spec.workload, ClosedLoop)
        known = peak_at_16(spec, 0)
        assert isinstance(known, dict)
        rate = some(known["output_throughput"])
        return {**known, "output_throughput": rate * spec.workload.num_prompts / 400}

    load = ClosedLoop(max_concurrency=10, num_prompts=400, input_len=8, output_len=8)
    result = bench.run(faster_when_whole, trials=6, slots=2, workload=load, search_prompts=200)
    records = bench.records()
    offered = {(r.round > 0): r.outcome.repeats[0].offered for r in records if r.outcome}
    assert offered == {False: 200, True: 400}
    scores: dict[int, set[float]] = {}
    for record in records:
        assert record.verdict is not None
        scores.setdefault(record.number, set()).add(round(some(record.verdict.score), 9))
    assert scores[0] == {1.0}
    assert all(len(each) == 1 for each in scores.values()), scores
    assert some(result.conclusion).confirmed


@pytest.mark.parametrize(("began", "asked"), [(200, None), (None, 200), (200, 100), (None, None)])
def test_a_resumed_study_uses_the_workload_of_its_first_run(bench: Bench, began: int | None, asked: int | None) -> None:
    load = ClosedLoop(max_concurrency=10, num_prompts=400, input_len=8, output_len=8)
    store, info = bench.store(), StubEngine(peak_at_16).info()
    assert with_stored_settings(bench.spec(workload=load, search_prompts=asked), store).search_prompts == asked
    first = bench.spec(workload=load, search_prompts=began)
    open_study(store, first, info, ["cpu"], RealClock())
    again = with_stored_settings(bench.spec(workload=load, search_prompts=asked, confirm_rounds=0), store)
    open_study(store, again, info, ["cpu"], RealClock())
    assert again.searched_workload == first.searched_workload
    store.close()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("drivers", "580.65", "590.1"), ("machines", {"tuner": "0.1.0", "os": "Ubuntu"}, {"tuner": "0.2.0", "os": None})],
)
def test_a_study_knows_every_driver_and_machine_that_it_ran_with(bench: Bench, name: str, old: Any, new: Any) -> None:
    store, info = bench.store(), StubEngine(peak_at_16).info()
    found = []
    for fact in (None, old, old, new, old, None):
        spec = bench.spec(facts={} if fact is None else {name: [fact]})
        open_study(store, spec, info, ["H200"], RealClock())
        found.append(some(store.study("s")).facts.get(name))
    store.close()
    assert found == [None, [old], [old], [old, new], [old, new], [old, new]]


@pytest.mark.parametrize(
    ("changes", "slots", "expected"),
    [
        # a trial takes 40 s and a benchmark of 20 s; a round measures three times, four configurations, three rounds
        ({}, 1, (40 + 3 * 20) * 4 * 3),
        ({}, 2, (40 + 3 * 20) * 4 * 2),
        ({"search_prompts": 100}, 1, (40 + 3 * 4 * 20) * 4 * 3),
        ({"confirm_rounds": 0}, 1, 0),
        # three looks after two rounds each, a new form of 60 s before each. Half of 60 trials are three forms, and 27
        # measurements, of which six rounds of four configurations need 24; 12 measurements are allowed in any case
        ({"reduce": True, "trials": 60}, 1, 3 * 60 + (40 + 3 * 20) * 24),
        ({"reduce": True, "trials": 60}, 2, 3 * 60 + (40 + 3 * 20) * 12),
        ({"reduce": True}, 1, 3 * 60 + (40 + 3 * 20) * 9),
    ],
)
def test_the_expected_time_of_the_rounds(bench: Bench, changes: dict[str, Any], slots: int, expected: float) -> None:
    trials = changes.get("trials", 6)
    own = {name: value for name, value in changes.items() if name != "trials"}
    spec = bench.spec(workload=ClosedLoop(max_concurrency=10, num_prompts=400), **own)
    seconds, benchmarks = ([*([each] * (trials - 1)), slow] for each, slow in ((60.0, 100.0), (20.0, 60.0)))
    assert longest_confirmation_s(spec, seconds, benchmarks, slots) == pytest.approx(expected)
    assert longest_confirmation_s(spec, [], [], slots) == 0


def test_budget_counts_the_defaults_and_named_trials(bench: Bench) -> None:
    bench.run(peak_at_16, trials=5, enqueue=(Enqueued("known", {"max_num_seqs": 8}),), confirm_rounds=0)
    kinds = [record.kind for record in bench.records()]
    assert kinds == [TrialKind.BASELINE, TrialKind.ENQUEUED, *[TrialKind.SEARCH] * 3]
    assert bench.records()[1].label == "known"
    assert dict(bench.records()[1].config) == {"max_num_seqs": 8}


def test_the_defaults_are_trial_0_and_the_better_configuration_wins_with_an_interval(bench: Bench) -> None:
    result = bench.run(peak_at_16, trials=8)
    assert result.conclusion is not None
    assert not result.conclusion.keep_defaults
    assert result.conclusion.confirmed
    winner = next(c for c in result.conclusion.finalists if c.number == result.conclusion.winner)
    best = max(c.metrics["output_throughput"].ratio for c in result.conclusion.finalists)
    assert winner.metrics["output_throughput"].ratio == pytest.approx(best)
    rounds = [record for record in bench.records() if record.round]
    assert len(rounds) == 4 * 3
    assert {record.round for record in rounds} == {1, 2, 3}
    seeds = {record.round: {r.seed for r in record.outcome.repeats} for record in rounds if record.outcome}
    assert seeds == {1: {2000, 2001, 2002}, 2: {3000, 3001, 3002}, 3: {4000, 4001, 4002}}
    first = bench.records()[0]
    assert (first.number, first.kind, first.label, dict(first.config)) == (0, TrialKind.BASELINE, "defaults", {})
    assert first.outcome is not None
    assert [repeat.seed for repeat in first.outcome.repeats] == [1000, 1001, 1002]
    assert first.outcome.metric("output_throughput") == 1001.0
    assert first.outcome.argv == ("stub", "serve", "m")
    assert some(first.verdict).score == pytest.approx(1.0)


def test_a_finalist_that_missed_an_slo_is_not_measured_again(bench: Bench) -> None:
    def tires(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        known = peak_at_16(spec, index)
        assert isinstance(known, dict)
        return {**known, "p99_tpot_ms": 60.0} if spec.round and spec.config.get("max_num_seqs") == 16 else known

    named = tuple(Enqueued(str(seqs), {"max_num_seqs": seqs}) for seqs in (16, 8, 4))
    result = bench.run(tires, trials=4, enqueue=named)
    assert result.conclusion is not None
    reasons = {contender.number: contender.disqualified for contender in result.conclusion.finalists}
    assert reasons == {1: "missed p99_tpot_ms<50 in round 1 (60)", 2: None, 3: None}
    measured = [record.number for record in bench.records() if record.round]
    assert {number: measured.count(number) for number in reasons} == {1: 1, 2: 3, 3: 3}


def test_nothing_better_keeps_the_defaults(bench: Bench) -> None:
    result = bench.run(worse, trials=6)
    assert result.conclusion is not None
    assert result.conclusion.winner == 0
    assert result.conclusion.keep_defaults
    assert "keep the defaults" in result.conclusion.reason
    assert result.conclusion.flag_effects == ()


def test_a_failed_configuration_is_recorded_and_the_study_continues(bench: Bench) -> None:
    def crashes_above_20(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        seqs = spec.config.get("max_num_seqs", 0)
        if isinstance(seqs, int) and seqs > 20:
            return Failure(FailureKind.OUT_OF_MEMORY_STARTUP, Phase.READY, "CUDA out of memory")
        return peak_at_16(spec, index)

    result = bench.run(crashes_above_20, trials=12, confirm_rounds=0)
    assert result.ending is RunEnding.DONE
    failed = [record for record in bench.records() if record.state == "failed"]
    assert failed
    for record in failed:
        assert some(record.verdict).constraints == {"failed": 10.0}
        assert record.attempts == 1
    assert all(server.stopped >= 1 for engine in bench.engines for server in engine.servers)


def test_infrastructure_failures_are_retried_twice_and_then_ignored(bench: Bench) -> None:
    tries: dict[int, int] = {}

    def port_taken_twice(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        if spec.number == 2 and spec.attempt <= 2 and not spec.round:
            tries[spec.number] = spec.attempt
            return Failure(FailureKind.PORT_TAKEN, Phase.LAUNCH, "port taken")
        return peak_at_16(spec, index)

    bench.run(port_taken_twice, trials=4, confirm_rounds=0)
    record = bench.records()[2]
    assert (record.state, record.attempts) == ("ok", 3)
    assert [uid for uid, _ in bench.listener.retried_trials] == ["2", "2-a2"]
    store = bench.store()
    assert [(a.number, a.attempt) for a in store.failed_attempts("s")] == [(2, 1), (2, 2)]
    store.close()


def test_repeated_infrastructure_failures_stop_the_study(bench: Bench) -> None:
    def busy(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        return Failure(FailureKind.GPU_BUSY, Phase.READY, "free memory is less than desired")

    result = bench.run(busy, trials=20)
    assert result.ending is RunEnding.INFRASTRUCTURE
    assert some(result.reason).kind is FailureKind.GPU_BUSY
    done = [record for record in bench.records() if record.outcome is not None]
    assert len(done) == 3
    assert all(record.verdict is None for record in done)


NO_WEIGHTS = "RuntimeError: Cannot find any model weights with `/model`"


@pytest.mark.parametrize("slots", [1, 2])
def test_a_model_without_weights_ends_the_study_at_the_second_start(bench: Bench, slots: int) -> None:
    starts: set[str] = set()
    second = threading.Event()

    def without_weights(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        starts.add(spec.uid)
        if spec.number == 1:
            second.set()
        elif slots == 2 and spec.attempt > 1:
            assert second.wait(60)
        return Failure(FailureKind.ENVIRONMENT_BROKEN, Phase.READY, NO_WEIGHTS)

    result = bench.run(without_weights, trials=20, slots=slots)
    assert result.ending is RunEnding.INFRASTRUCTURE
    assert some(result.reason).message == NO_WEIGHTS
    if slots == 1:
        assert starts == {"0", "0-a2"}
    else:  # a worker may begin other attempts before the failure of the second worker is read
        assert {"0", "1"} <= starts <= {"0", "1", "0-a2", "0-a3"}
    assert all(record.state == "pending" for record in bench.records())
    bench.run(peak_at_16, trials=4, confirm_rounds=0)
    assert bench.records()[0].state == "ok"


def test_a_broken_environment_that_changes_or_that_the_defaults_lack_is_retried(bench: Bench) -> None:
    def other_each_time(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        if spec.number == 0 and spec.attempt < 3:
            return Failure(FailureKind.ENVIRONMENT_BROKEN, Phase.READY, "NCCL error" + "!" * spec.attempt)
        if spec.number == 1 and spec.attempt < 3:
            return Failure(FailureKind.ENVIRONMENT_BROKEN, Phase.READY, "the draft model has no weights")
        return peak_at_16(spec, index)

    result = bench.run(other_each_time, trials=4, confirm_rounds=0)
    assert result.ending is RunEnding.DONE
    assert [record.attempts for record in bench.records()] == [3, 3, 1, 1]


def test_a_server_killed_in_every_attempt_is_a_failure_of_the_configuration(bench: Bench) -> None:
    def killed(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        if spec.number == 1:
            return Failure(FailureKind.SERVER_KILLED, Phase.BENCHMARK, "killed by SIGKILL", exit_code=-9)
        return peak_at_16(spec, index)

    bench.run(killed, trials=3, confirm_rounds=0)
    outcome = some(bench.records()[1].outcome)
    assert some(outcome.failure).kind is FailureKind.ENGINE_CRASH
    assert bench.records()[1].attempts == 3


def test_the_same_failure_of_all_first_trials_stops_the_study(bench: Bench) -> None:
    def broken(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        return Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, f"no such file {spec.number}")

    known = tuple(Enqueued(f"n{seqs}", {"max_num_seqs": seqs}) for seqs in (6, 16, 26))
    result = bench.run(broken, trials=20, enqueue=known)
    assert result.ending is RunEnding.SAME_FAILURE
    assert some(result.reason).message.startswith("no such file")
    assert len(bench.records()) == 3


def test_a_resumed_study_repeats_no_trial(bench: Bench) -> None:
    bench.run(peak_at_16, trials=5, confirm_rounds=0)
    before = bench.records()
    bench.run(peak_at_16, trials=9, confirm_rounds=0)
    after = bench.records()
    assert after[:5] == before
    assert [record.number for record in after][:5] == [0, 1, 2, 3, 4]
    assert len(after) == 9
    assert len({str(sorted(record.config.items())) for record in after}) == 9


def test_a_stopped_run_leaves_its_trial_pending_and_the_next_run_repeats_it(bench: Bench) -> None:
    def stop_after_three(record: TrialRecord) -> None:
        if len(bench.listener.finished_trials) == 3:
            bench.stop.set()

    bench.listener.on_finished = stop_after_three
    result = bench.run(peak_at_16, trials=8)
    assert result.ending is RunEnding.INTERRUPTED
    assert len([r for r in bench.records() if r.outcome]) == 3
    bench.listener.on_finished = None
    bench.stop.clear()
    assert bench.run(peak_at_16, trials=8, confirm_rounds=0).ending is RunEnding.DONE
    assert len(bench.records()) == 8
    assert all(record.outcome is not None for record in bench.records())


def test_a_changed_premise_is_refused_with_the_difference(bench: Bench) -> None:
    bench.run(peak_at_16, trials=2, confirm_rounds=0)
    changed = bench.spec().workload.model_copy(update={"num_prompts": 50})
    with pytest.raises(UserError, match=r"another workload \(num_prompts: 100 -> 50\)"):
        bench.run(peak_at_16, trials=3, workload=changed)


def test_another_command_does_not_continue_a_study(bench: Bench) -> None:
    server = ServerSettings(command=("serve", "{port}"), folder="/one")
    bench.run(peak_at_16, trials=2, confirm_rounds=0, server=server)
    bench.run(peak_at_16, trials=3, confirm_rounds=0, server=replace(server, folder="/other"))
    with pytest.raises(UserError) as caught:
        bench.run(peak_at_16, trials=4, server=replace(server, command=("serve", "{port}", "{flags}")))
    assert "another server setting (command: serve, {port} -> serve, {port}, {flags})" in str(caught.value)


def test_the_content_of_a_workload_file_is_part_of_the_premise(bench: Bench) -> None:
    (bench.folder / "prompts.jsonl").write_text('{"prompt": "one"}\n')
    (bench.folder / "load.yaml").write_text(
        "arrivals: {process: poisson, rate: 4}\nrequests: 10\nclasses: {a: {text: {file: prompts.jsonl}, output: 4}}\n"
    )
    load = load_traffic(bench.folder / "load.yaml")
    info = EngineInfo("vllm", "1", None, None, Provenance.MEASURED)
    premise = bench.spec(workload=load).premise(info, ["cpu"])
    # printf '{"prompt": "one"}\n' | sha256sum
    assert list(premise["files"].values()) == ["bcd84350c596513dbb13274db88eea7bbc55410c84ca42a820bc59a360c3ba55"]
    (bench.folder / "prompts.jsonl").write_text('{"prompt": "two"}\n')
    assert bench.spec(workload=load).premise(info, ["cpu"]) != premise


def test_two_slots_share_the_work(bench: Bench) -> None:
    bench.run(peak_at_16, trials=9, slots=2)
    numbers = [record.number for record in bench.records() if not record.round]
    assert sorted(numbers) == numbers
    assert len(numbers) == 9
    by_round: dict[int, set[str]] = {}
    for record in bench.records():
        if record.round and record.outcome:
            by_round.setdefault(record.round, set()).add(record.outcome.worker)
    assert by_round == {1: {"w0"}, 2: {"w1"}, 3: {"w0"}}


def test_a_small_space_is_enumerated_and_then_the_study_is_done(bench: Bench) -> None:
    bench.space_file.write_text(
        "description: d\nparameters:\n"
        "  max_num_seqs: {description: d, type: categorical, choices: [8, 16, 32], flag: --max-num-seqs}\n"
        "  enforce_eager: {description: d, type: bool, flag: --enforce-eager}\n"
    )
    result = bench.run(peak_at_16, trials=40, confirm_rounds=0)
    assert result.space_exhausted
    configs = {tuple(sorted(record.config.items(), key=str)) for record in bench.records()}
    assert len(configs) == len(bench.records())
    rendered = {record.outcome.argv for record in bench.records() if record.outcome}
    assert len(rendered) == len(bench.records())


def test_a_converged_search_ends_and_continues_with_a_min_gain_of_0(bench: Bench) -> None:
    """All configurations are equal: the search converges after eighteen trials."""

    def alike(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        return {**FIGURES, "output_throughput": 1000.0 + index}

    result = bench.run(alike, trials=60, min_gain=0.01, sampler=RESIDUAL)
    ended = len([record for record in bench.records() if not record.round])
    assert result.converged
    assert result.ending is RunEnding.DONE
    assert some(result.conclusion).keep_defaults
    assert ended == 18
    again = bench.run(alike, trials=60, min_gain=0.01, sampler=RESIDUAL)
    assert again.converged
    assert [engine.launched for engine in bench.engines] == [[]]
    assert not bench.run(alike, trials=ended + 1, sampler=RESIDUAL, confirm_rounds=0).converged
    assert len([record for record in bench.records() if not record.round]) == ended + 1


def test_a_search_with_tpe_converges_too(bench: Bench) -> None:
    result = bench.run(worse, trials=19, min_gain=0.5, sampler=TPE, confirm_rounds=0)
    assert result.converged
    assert len(bench.records()) == 18


def test_a_search_whose_defaults_miss_an_slo_is_given_more_trials(bench: Bench) -> None:
    def slow_defaults(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        return {**FIGURES, "output_throughput": 1000.0, "p99_tpot_ms": 10.0 if spec.config else 60.0}

    result = bench.run(slow_defaults, trials=28, min_gain=0.5, sampler=TPE, confirm_rounds=0)
    assert result.converged
    assert len(bench.records()) == 27  # the defaults, one that meets the SLOs, and 25


def test_a_timeout_ends_the_search_and_still_concludes(bench: Bench) -> None:
    result = bench.run(peak_at_16, trials=500, timeout_s=1e-9)
    assert result.ending is RunEnding.TIMEOUT
    assert bench.records() == []


def test_a_slo_missed_by_the_defaults_only(bench: Bench) -> None:
    def slow_defaults(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        tpot = 10.0 if spec.config else 80.0
        return {"success_rate": 1.0, "p99_tpot_ms": tpot, "output_throughput": 500.0}

    result = bench.run(slow_defaults, trials=4)
    assert result.conclusion is not None
    assert result.conclusion.winner not in (None, 0)
    assert "met the SLOs in every round; the defaults did not: missed p99_tpot_ms<50" in result.conclusion.reason


def test_if_the_defaults_fail_scores_are_relative_to_the_first_success(bench: Bench) -> None:
    def no_defaults(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        if not spec.config:
            return Failure(FailureKind.OUT_OF_MEMORY_STARTUP, Phase.READY, "no memory")
        return peak_at_16(spec, index)

    known = tuple(Enqueued(f"n{seqs}", {"max_num_seqs": seqs}) for seqs in (6, 16, 26))
    result = bench.run(no_defaults, trials=4, enqueue=known)
    # Throughput weighs 40 of 70 and the rest is equal: against 1300, 1500 scores (1500 / 1300) ** (40 / 70).
    scores = [record.verdict.score for record in bench.records() if record.verdict and not record.round]
    assert scores == [None, pytest.approx(1.0), pytest.approx((1500 / 1300) ** (40 / 70)), pytest.approx(1.0)]
    assert result.conclusion is not None
    assert (result.conclusion.winner, result.conclusion.keep_defaults) == (2, False)
    assert (result.conclusion.reference, result.conclusion.confirmed, result.conclusion.rounds) == (2, True, 3)
    measured = [(record.number, record.round) for record in bench.records() if record.round]
    assert measured == [(number, round_) for number in (1, 2, 3) for round_ in (1, 2, 3)]
    assert "the defaults failed (out_of_memory_startup)" in result.conclusion.reason


def test_a_study_without_the_defaults_has_a_winner(bench: Bench) -> None:
    known = tuple(Enqueued(f"n{seqs}", {"max_num_seqs": seqs}) for seqs in (6, 16))
    result = bench.run(peak_at_16, trials=2, enqueue=known, baseline_repeats=0)
    assert result.conclusion is not None
    assert result.conclusion.winner == 1
    assert "the defaults were not measured" in result.conclusion.reason


def test_no_trial_meets_the_slos(bench: Bench) -> None:
    def slow(spec: TrialSpec, index: int) -> dict[str, float | None] | Failure:
        return {"success_rate": 0.9, "p99_tpot_ms": 10.0, "output_throughput": 500.0}

    result = bench.run(slow, trials=4)
    assert result.conclusion is not None
    assert result.conclusion.winner is None
    assert result.conclusion.reason == (
        "no configuration meets the SLOs in every round; trial 0 is the nearest: it misses success_rate>=1"
    )
    assert result.conclusion.exported == 0
    measured = [record for record in bench.records() if record.round]
    assert len(measured) == 12  # four in three rounds, though each misses an SLO


def test_difference_names_every_leaf() -> None:
    old: dict[str, Any] = {"a": {"b": 1, "c": 2}, "d": [1]}
    new: dict[str, Any] = {"a": {"b": 1, "c": 3}, "d": [1, 2]}
    assert difference(old, new) == ["a.c: 2 -> 3", "d: [1] -> [1, 2]"]


def test_enqueued_configurations_are_checked(bench: Bench) -> None:
    with pytest.raises(SpaceError):
        bench.spec().space.complete({"max_num_seqs": 100000})


def test_cancelling_ends_a_held_benchmark(bench: Bench) -> None:
    from tests.fakes.stub_engine import StubEngine
    from tuner.executors.base import InlineExecutor

    hold = threading.Event()
    executor = InlineExecutor(lambda _: StubEngine(peak_at_16, hold))
    executor.submit(bench.spec().trial(0, 0, 1, TrialKind.SEARCH, {}), 0)
    executor.cancel()
    finished = executor.wait_any(10.0)
    assert [item.outcome.failure.kind for item in finished if item.outcome.failure] == [FailureKind.CANCELLED]
    executor.close()
