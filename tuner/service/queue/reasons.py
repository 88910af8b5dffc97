"""The reason for which a submission waits, in words for a page. Other people's studies are counted, never named."""

from __future__ import annotations


def is_are(count: int) -> str:
    """Return the verb for a number of things."""
    return "is" if count == 1 else "are"


def hours(seconds: float) -> str:
    """Return seconds as hours with one decimal."""
    return f"{seconds / 3600:.1f}"


def no_such_devices(kind: str, total: int, least: int) -> str:
    """Return the reason of a submission that asks for more devices than exist."""
    if total == 0:
        return f"no device of kind {kind}"
    return f"{least} {kind} {is_are(least)} asked, {total} {'exists' if total == 1 else 'exist'}"


def too_few_free(kind: str, total: int, free: int, least: int) -> str:
    """Return the reason of a submission that does not fit into the free devices."""
    return f"{free} of {total} {kind} {is_are(free)} free, {least} {is_are(least)} asked"


def behind(others: int) -> str:
    """Return the reason of a submission that others precede."""
    return f"behind {others} other{'' if others == 1 else 's'}"


def until_trials_end(kind: str, coming: int) -> str:
    """Return the reason of a submission whose devices come free at the end of trials."""
    return f"{coming} {kind} {'comes' if coming == 1 else 'come'} free at the end of running trials"


BEHIND_OWN_QUOTA = "behind another of the same owner that waits for the quota"
KEPT = "; the free ones are kept for it"
BEHIND_OWN = "behind another of the same owner that needs more devices"
