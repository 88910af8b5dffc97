"""Ctrl-C as the end of a command that has nothing to save."""

import subprocess
import sys

IN_FINALIZER = """
import signal
from tuner.cli.signals import ends_at_interrupt

class InFinalizer:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

with ends_at_interrupt("stopped"):
    InFinalizer()
    print("it went on")
"""


def test_a_ctrl_c_ends_the_process_where_python_drops_exceptions() -> None:
    ended = subprocess.run([sys.executable, "-c", IN_FINALIZER], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "stopped\n")
