"""The run: studies are submitted, faults strike, ended studies are checked."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from records.trials import TrialRecord
from tests.service.chaos.checks import Use, check_devices, check_mlflow, check_study, finished, kind_of
from tests.service.chaos.faults import FAULTS, Scene
from tests.service.chaos.figures import Figures
from tests.service.chaos.surroundings import CPU, SIMULATED, Follower, Surroundings
from tests.service.chaos.watch import Watch
from tests.service.running import DEADLINE_S, ENDED

OPEN = {SIMULATED: 2, CPU: 1}
"""Studies that are not at their end at the same time: one for each device."""
SLOW_S = 90.0
"""A recovery that takes longer keeps Ray's logs, which their driver would remove."""
HANG_S = 600.0
LEFTOVERS_S = 60.0
LATEST_S = 4.0
"""A fault comes at most this long after the one before was over."""
LOST_RULE = "drivers were lost without a new trial in between"


@dataclass(frozen=True)
class ActiveFault:
    """A fault that struck.

    Attributes:
        name: of the fault.
        began: when, of `time.monotonic`.
        before: how many trials its victims had; one of them must have more for the fault to be over.
    """

    name: str
    began: float
    before: dict[str, int]


class Play:
    """The state of a run."""

    def __init__(self, around: Surroundings) -> None:
        self.around, self.figures = around, Figures(around.seed)
        self.watch = Watch(around.folder, around.home, self.figures)
        self.scene = Scene(around, self.watch, self.figures)
        self.open: dict[str, Follower] = {}
        self.ids: list[str] = []
        self.uses: list[Use] = []
        self.records: dict[str, dict[tuple[int, int], TrialRecord]] = {}
        self.watch.start()

    def submit(self) -> None:
        """Submit studies until enough are open."""
        for kind, most in OPEN.items():
            for _ in range(most - sum(kind_of(id) == kind for id in self.open)):
                id = f"{kind}-{len(self.ids)}"
                self.around.submit(id, kind, len(self.ids))
                self.ids.append(id)
                self.open[id] = follower = Follower(self.around, id)
                follower.start()

    def check_ended(self) -> None:
        """Check the studies that have ended; resume those that ended by the rule about lost drivers."""
        for id in list(self.open):
            found = self.around.call("GET", f"/v1/studies/{id}")
            if found["state"] not in ENDED:
                continue
            if found["state"] == "FAILED" and LOST_RULE in found["reason"]:
                self.figures.resumed["lost drivers"] += 1
                self.around.call("POST", f"/v1/studies/{id}:resume")
                continue
            if found["state"] != "DONE":
                self.figures.problems.append(f"{id} is {found['state']}: {found['reason']}")
            self.look_at_trials(id)
            self.uses += check_study(self.around, self.figures, id, kind_of(id), self.open.pop(id))

    def look_at_trials(self, id: str) -> None:
        """Check that no finished trial was lost or repeated."""
        now, before = finished(self.around, id), self.records.get(id, {})
        for key, record in before.items():
            if key not in now:
                self.figures.problems.append(f"{id}: trial {key} is lost")
            elif (now[key].outcome, now[key].config) != (record.outcome, record.config):
                self.figures.problems.append(f"{id}: trial {key} differs: it was repeated")
        self.records[id] = now

    def faults(self, together: int) -> None:
        """Let faults strike one after the other, and wait until the victims of each have a new trial."""
        active = [fault for _ in range(together) if (fault := self.strike()) is not None]
        self.wait_until(lambda: self.recovered(active), ", ".join(fault.name for fault in active))
        for id in self.open:
            self.look_at_trials(id)

    def strike(self) -> ActiveFault | None:
        """Let a fault strike; return None if it found no victim."""
        names = list(FAULTS)
        name = self.around.random.choices(names, [FAULTS[name][0] for name in names])[0]
        before = {id: follower.trials for id, follower in self.open.items()}
        began = time.monotonic()
        struck = FAULTS[name][1](self.scene)
        if struck is None:
            return None
        self.figures.faults[name] += 1
        _say(f"{name}: {struck or 'all'}")
        victims = [struck] if struck else list(before)
        return ActiveFault(name, began, {id: before.get(id, 0) for id in victims})

    def recovered(self, active: list[ActiveFault]) -> bool:
        """Take the faults from the list whose victims have a new trial; return whether none is left."""
        for fault in list(active):
            if any(self.has_moved(id, trials) for id, trials in fault.before.items()):
                lasted = time.monotonic() - fault.began
                self.figures.recovery_s[fault.name].append(lasted)
                _say(f"  recovered in {lasted:.1f} s: {fault.name}")
                active.remove(fault)
        return not active

    def wait_until(self, done: Callable[[], bool], what: str) -> None:
        """Wait until something holds; a hang is a problem, and the run goes on."""
        began, kept = time.monotonic(), False
        while not done():
            lasts = time.monotonic() - began
            if lasts > SLOW_S and not kept:
                kept = True
                self.watch.keep_logs(self.around.folder / f"ray-{sum(self.figures.faults.values())}")
            if lasts > HANG_S:
                self.figures.problems.append(f"no progress for {HANG_S:.0f} s after: {what}")
                return
            time.sleep(0.1)

    def has_moved(self, id: str, trials: int) -> bool:
        """Return whether a client has seen a new trial of a study, or its end."""
        follower = self.open.get(id)
        return follower is None or follower.trials > trials or follower.has_ended

    def finish(self) -> None:
        """Wait until every study has ended, end the services, and check what is left."""
        began = time.monotonic()
        while self.open and time.monotonic() - began < HANG_S:
            self.check_ended()
            time.sleep(1.0)
        for id, follower in self.open.items():
            found = self.around.call("GET", f"/v1/studies/{id}")
            self.figures.problems.append(f"{id} hangs: {found['state']}, {follower.trials} trials")
        self.figures.problems += check_devices(self.uses)
        self.figures.terms = self.around.leader()[1]
        for service in self.around.services:
            service.process.terminate()
        for service in self.around.services:
            service.process.wait(timeout=DEADLINE_S)
        began = time.monotonic()
        while (left := self.watch.leftovers()) and time.monotonic() - began < LEFTOVERS_S:
            time.sleep(0.5)
        if left:
            self.figures.problems.append(f"left {LEFTOVERS_S:.0f} s after the end: {left}")
        check_mlflow(self.around, self.figures, self.ids)

    def close(self) -> None:
        """End the processes that a failed run has left."""
        self.watch.ended.set()
        for follower in self.open.values():
            follower.ended.set()
        for service in self.around.services:
            with suppress(ProcessLookupError):
                service.kill()
        self.watch.kill_all()


def run(around: Surroundings, faults: int, together: int) -> Figures:
    """Let so many faults strike, and return what was found.

    Args:
        around: the services, not started.
        faults: that strike in all; the last ones that strike together may exceed it.
        together: how many strike before the run waits for their victims.
    """
    play = Play(around)
    try:
        while sum(play.figures.faults.values()) < faults:
            play.check_ended()
            play.submit()
            time.sleep(around.random.uniform(0.0, LATEST_S))
            play.faults(together)
        play.finish()
    except AssertionError as error:
        play.figures.problems.append(str(error))
    finally:
        play.close()
    return play.figures


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
