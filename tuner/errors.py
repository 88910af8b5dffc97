"""The exceptions of the tuner, and the exit code with which each ends a command.

There are two families. `TunerError`, `UserError` and `SettingError` end a command or a call of the Python API.
`TrialFailed` ends one trial and carries its typed `Failure`, `TrialCut` one that cannot win; only the trial's pipeline
catches them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from records.trials import Cut, Failure, FailureKind, Phase

EXIT_OURS = 1
EXIT_USER = 2
EXIT_SLOS_MISSED = 3
"""The study ended, and no configuration meets its SLOs."""

EXIT_TIME_LIMIT = 4
"""The time limit of a study ended the run before it had a result; the same command continues it."""

EXIT_INCONCLUSIVE = 5
"""A verification, a recheck or a comparison of two servers found nothing worse, and cannot tell that nothing is."""

EXIT_WORSE = 6
"""A recheck or a comparison of two servers found that something is worse; nothing failed."""

EXIT_INTERRUPTED = 130

FREE_SPACE = "free some space, or name folders on another disk by HF_HOME, VLLM_CACHE_ROOT and TUNER_HOME"
"""What to do about a full disk."""


class TunerError(Exception):
    """The tuner cannot continue, for another reason than the user's input; one line, exit code 1."""

    exit_code = EXIT_OURS


class UserError(TunerError):
    """The user's input cannot work; one line with the rule, the value and the next step, exit code 2."""

    exit_code = EXIT_USER


class InfrastructureError(TunerError):
    """The machine or the cluster failed, neither the input nor the tuner; trying again may help. Exit code 1."""


class SettingError(UserError):
    """A setting has a value that cannot work.

    `str()` uses the names of the Python API: `trials=0: at least 1 is needed; give a larger number`. `message` uses
    other names, such as the options of a command line.

    Attributes:
        field: the setting, by its keyword in `tuner.optimize`.
        value: its value; None where it was not given, and then the message starts with the rule.
        rule: the rule that the value breaks.
        remedy: the next step. In `rule` and `remedy`, `{name}` stands for the setting `name`, `{{name}}` for itself.
    """

    def __init__(self, field: str, value: object, rule: str, remedy: str = "") -> None:
        super().__init__(field, value, rule, remedy)
        self.field = field
        self.value = value
        self.rule = rule
        self.remedy = remedy

    def message(self, name: Callable[[str], str], joint: str) -> str:
        """Return the line with other names of settings.

        Args:
            name: returns the shown name of a setting.
            joint: the text between the name and the value.
        """
        text = spelled(self.rule + (f"; {self.remedy}" if self.remedy else ""), name)
        if self.value is None:
            return text
        value = f"{self.value:g}" if isinstance(self.value, float) else repr(self.value)
        return f"{name(self.field)}{joint}{value}: {text}"

    def __str__(self) -> str:
        return self.message(lambda name: name, "=")


def spelled(text: str, name: Callable[[str], str]) -> str:
    """Return a text in which `{setting}` is the name that `name` returns, and `{{word}}` is `{word}`."""
    return re.sub(r"\{(\{[a-z_]+\})\}|\{([a-z_]+)\}", lambda match: match[1] or name(match[2]), text)


def reason_of(error: Exception) -> str:
    """Return why something failed, without the number and the path that the text of an OSError repeats."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def trials_command(study: str) -> str:
    """Return the command that lists the trials of a study, which need not be the latest one."""
    return f"`tuner study trials {shlex.quote(study)}`"


def see_trials(study: str) -> str:
    """Return the advice to list the trials of a study."""
    return f"see {trials_command(study)}"


def as_text(text: str) -> str:
    """Return a user's text for a rule or a remedy, in which braces stand for themselves."""
    return re.sub(r"(\{[a-z_]+\})", r"{\1}", text)


class TrialFailed(Exception):
    """One trial failed; `failure` has the type."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class TrialCut(Exception):
    """One trial cannot win any more; `cut` says why."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut.reason)
        self.cut = cut


def trial_failed(kind: FailureKind, phase: Phase, message: str) -> TrialFailed:
    """Build a `TrialFailed` from its parts."""
    return TrialFailed(Failure(kind, phase, message))
