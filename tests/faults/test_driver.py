"""The command itself is killed or interrupted, and the same command goes on."""

from __future__ import annotations

import signal

from tests.faults.command import Study, until
from tests.faults.conftest import MakeStudy


def assert_goes_on(study: Study, trials: int) -> None:
    """Check that every trial is there, measured, and logged once."""
    records = study.finished()
    assert sorted(records) == [(number, 0) for number in range(trials)]
    assert all(record.state in ("ok", "infeasible") for record in records.values())
    study.assert_logged_once()


def test_two_at_once_then_kill_9_of_the_driver(make_study: MakeStudy) -> None:
    study = make_study(4, 2.0)
    both = [study.start(), study.start()]
    [refused] = until(lambda: [command for command in both if command.popen.poll() is not None], "one of two refused")
    [first] = [command for command in both if command is not refused]
    assert refused.end() == 2
    message = f"tuner: study 'faults' is being run by process {first.popen.pid}; wait for it, or choose another --study"
    assert refused.output().splitlines()[-1] == message

    server = study.server("2", first)
    first.kill()
    before = study.finished()
    assert sorted(before) == [(0, 0), (1, 0)]
    assert study.records()[(2, 0)].state == "pending"
    assert server in study.servers()

    again = study.start()
    assert again.end() == 0, again.output()
    assert_goes_on(study, 4)
    after = study.records()
    assert {key: after[key] for key in before} == before
    assert {key: record.attempts for key, record in after.items() if record.attempts != 1} == {(2, 0): 2}
    study.assert_nothing_left()


def test_ctrl_c_sigterm_and_a_hang_up(make_study: MakeStudy) -> None:
    study = make_study(4, 2.0)
    first = study.start()
    study.server("1", first)
    first.interrupt()
    assert first.end() == 130, first.output()
    assert [line for line in first.output().splitlines() if line.startswith("go on with: ")]
    assert sorted(study.finished()) == [(0, 0)]
    study.assert_nothing_left()

    second = study.start()
    study.server("2", second)
    assert sorted(study.finished()) == [(0, 0), (1, 0)]
    second.popen.send_signal(signal.SIGTERM)
    assert second.end() == 130, second.output()
    assert sorted(study.finished()) == [(0, 0), (1, 0)]
    study.assert_nothing_left()

    third = study.start()
    study.server("2-a2", third)
    third.popen.send_signal(signal.SIGHUP)
    assert third.end() == 130, third.output()
    assert sorted(study.finished()) == [(0, 0), (1, 0)]
    study.assert_logged_once()
    study.assert_nothing_left()
