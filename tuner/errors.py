"""The exceptions that cross the tuner's modules, and the exit code each ends the command with.

Two families. `UserError` and `TunerError` end a command: exit 2 for what the user can mend, 1 for what is ours.
`TrialFailed` ends one trial and carries its typed `Failure`; only the trial's pipeline catches it.
"""

from __future__ import annotations

from storage.records import Failure, FailureKind, Phase

EXIT_OURS = 1
EXIT_USER = 2
EXIT_INTERRUPTED = 130


class TunerError(Exception):
    """Something of ours went wrong; the command ends with exit code 1 and this one line."""

    exit_code = EXIT_OURS


class UserError(TunerError):
    """The user's input cannot work; the message names the rule, the value and the next step. Exit code 2."""

    exit_code = EXIT_USER


class InfrastructureError(TunerError):
    """The machine or the cluster failed, neither the input nor the tuner; trying again may help. Exit code 1."""


class TrialFailed(Exception):
    """One trial failed in a way that has a type."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def trial_failed(
    kind: FailureKind, phase: Phase, message: str, evidence: str | None = None, exit_code: int | None = None
) -> TrialFailed:
    """Build a `TrialFailed` from its parts."""
    return TrialFailed(Failure(kind, phase, message, evidence, exit_code))
