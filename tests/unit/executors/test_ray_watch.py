"""The watch over Ray's control store while Ray starts."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tuner.executors.ray_watch import MESSAGE, watched


class ControlStore:
    """Runs, or does not; `looks` counts how often it was looked at."""

    def __init__(self, running: bool) -> None:
        self.running = running
        self.looks = threading.Semaphore(0)

    def __call__(self) -> bool:
        self.looks.release()
        return self.running


@pytest.mark.parametrize("begun", [True, False])
def test_a_start_that_ends_is_left_alone(begun: bool) -> None:
    given_up = threading.Event()
    with watched(ControlStore(begun), given_up.set, grace_s=60, poll_s=0.001):
        pass
    assert not given_up.is_set()


def test_a_start_that_goes_on_without_its_control_store_is_given_up() -> None:
    store, given_up = ControlStore(False), threading.Event()
    with watched(store, given_up.set, grace_s=0.001, poll_s=0.001):
        assert store.looks.acquire(timeout=60)
        store.running = True
        while store.looks.acquire(blocking=False):
            pass
        assert store.looks.acquire(timeout=60)
        assert store.looks.acquire(timeout=60)  # it was seen while it ran
        store.running = False
        assert given_up.wait(60)


def test_a_start_that_ends_within_the_grace_is_left_alone() -> None:
    store, given_up = ControlStore(True), threading.Event()
    with watched(store, given_up.set, grace_s=60, poll_s=0.001):
        assert store.looks.acquire(timeout=60)
        store.running = False
        while store.looks.acquire(timeout=0.1):  # until the watch waits out its grace
            pass
    assert not given_up.is_set()


def test_the_process_cleans_up_and_ends_with_one_line() -> None:
    program = (
        "from tuner.executors.ray_watch import end_this_process; end_this_process(lambda: print('clean', flush=True))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "clean\n", MESSAGE + "\n")
