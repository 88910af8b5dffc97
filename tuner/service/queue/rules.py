"""Numbers of the queue's rules; docs/design/service.md has their reasons."""

from __future__ import annotations

SIMULATED = "simulated"
"""The kind of the devices of simulated studies, and their engine's name. They are no GPUs: no quota counts them."""
WITHOUT_GPU = frozenset({"cpu", SIMULATED})
"""Kinds of devices that are no GPUs."""
HALF_LIFE_S = 86_400.0
"""Time after which a used GPU-second counts half."""
WEEK_S = 7 * 86_400.0
"""The sliding window of the quota of GPU-hours."""
MOST_PASSED_S = 7_200.0
"""Seconds for which smaller submissions may overtake one that does not fit; then devices are reserved for it."""
YIELD_AFTER_S = 1_200.0
"""Seconds that a study runs before it may be asked to yield to another owner."""
START_S = 600.0
"""GPU-seconds that are charged in advance for each device that an owner has or is granted."""
TRIAL_S = 600.0
"""Length of a trial where nothing is known."""
TRIALS_A_START = 3
"""A study is started if so many trials on each of its devices fit in the week's quota."""
