"""The watch over Ray's central processes."""

from __future__ import annotations

import subprocess
import sys
import threading

from tuner.executors.ray_start import MESSAGE, Watch


class ControlStore:
    """Runs, or does not; `looks` counts how often it was looked at."""

    def __init__(self, running: bool) -> None:
        self.running = running
        self.looks = threading.Semaphore(0)

    def __call__(self) -> bool:
        self.looks.release()
        return self.running


def test_a_watch_that_is_ended_gives_nothing_up() -> None:
    given_up = threading.Event()
    store = ControlStore(True)
    watch = Watch(store, given_up.set, grace_s=60, poll_s=0.001)
    assert store.looks.acquire(timeout=60)
    store.running = False
    while store.looks.acquire(timeout=0.1):  # until the watch waits out its grace
        pass
    watch.end()
    assert not given_up.wait(0.1)


def test_a_driver_that_goes_on_without_ray_is_given_up() -> None:
    store, given_up = ControlStore(True), threading.Event()
    Watch(store, given_up.set, grace_s=0.001, poll_s=0.001)
    assert store.looks.acquire(timeout=60)
    assert not given_up.is_set()
    store.running = False
    assert given_up.wait(60)


def test_the_grace_may_be_changed_while_it_lasts() -> None:
    store, given_up = ControlStore(False), threading.Event()
    watch = Watch(store, given_up.set, grace_s=600, poll_s=0.001)
    assert not given_up.wait(0.1)
    watch.grace_s = 0.0
    assert given_up.wait(60)


def test_the_process_cleans_up_and_ends_with_one_line() -> None:
    program = (
        "from tuner.executors.ray_start import end_this_process; end_this_process(lambda: print('clean', flush=True))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "clean\n", MESSAGE + "\n")
