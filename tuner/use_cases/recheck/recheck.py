"""The use case of `tuner recheck`: whether a study's answer still holds on the installation of today.

The winner and the reference are measured in alternation, and the gain is compared with the study's; the winner's
metrics are compared with the recorded ones as `tuner server verify` does. With several installations, the winner
is measured on each of them instead, and each is compared with the first.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from records.measured import outcomes_of
from records.trials import Provenance, Repeat, TrialRecord
from search_spaces.yaml_file import yaml_text
from storage import StorageError, open_store
from tuner.errors import SettingError, as_text
from tuner.export.references import Comparison, compared, references
from tuner.gpu import SlowdownWatch, load_warning
from tuner.gpu import devices as gpu_devices
from tuner.scoring.change import EQUAL, MARGIN, Change, Promise, change_of, gravest
from tuner.scoring.rounds import StudyRounds
from tuner.scoring.sequential import looks
from tuner.study.study_folder import study_lock
from tuner.use_cases.places import find_study, new_folder, storage_url
from tuner.use_cases.recheck.expected import SUFFIXES, Expected, expected_of, read_expected, write_expected
from tuner.use_cases.recheck.result import Judged, RecheckResult
from tuner.use_cases.recheck.rounds import Alternation, Arm, Say
from tuner.use_cases.recheck.today import (
    Installation,
    changes,
    find_installation,
    flag_changes,
    refuse_lost_flags,
    retune,
)
from tuner.workloads.spec import ClosedLoop, Suite

RECHECKS = "rechecks"
"""The fact of a study with the documents of its rechecks, the oldest first."""

_MOST_KEPT = 100


@dataclass(frozen=True, kw_only=True)
class RecheckSettings:
    """What to recheck.

    Attributes:
        study: name of a study, or a file that `save` wrote; None: the latest study.
        programs: vllm executables; several are compared with each other.
        model: served instead of the study's.
        margin: the smallest change that matters, as a share.
        rounds: at most twice as many are run.
        save: the file to write with today's measurements.
        output: folder of the logs.
        storage: the database.
    """

    study: str | None = None
    programs: tuple[str, ...] = ()
    model: str | None = None
    margin: float = MARGIN
    rounds: int = 3
    save: Path | None = None
    output: Path = Path("tuner_recheck")
    storage: str | None = None


def recheck(
    settings: RecheckSettings, tell: Callable[[list[str]], None], say: Say, stop: threading.Event
) -> RecheckResult:
    """Measure, and return the verdict; it is stored with the study.

    Args:
        settings: what to recheck.
        tell: gets the lines about what changed, before anything runs.
        say: gets a line for each measurement.
        stop: ends the recheck once it is set.

    Raises:
        UserError: for a setting that cannot work, and for a flag that the installed engine lacks.
        InfrastructureError: if a server cannot be measured.
    """
    if settings.save is not None and settings.save.suffix not in SUFFIXES:
        rule = "only a name that ends with .yaml or .yml is read as a file later, any other as a study's"
        raise SettingError("save", str(settings.save), rule, "end the name with .yaml")
    with ExitStack() as stack:
        expected, keep = _expected(settings, stack)
        if settings.model is not None:
            expected = _with_model(expected, settings.model)
        today: list[Installation] = []
        for program in settings.programs or (None,):
            today.append(find_installation(expected, program))
            stack.callback(today[-1].engine.close)
        arms = _arms(settings, expected, today)
        told = _told(settings, expected, today)
        tell(told)
        for each in today:
            refuse_lost_flags(expected, [arm.setup for arm in arms if arm.installation is each], each.info)
        result = _Measurement(settings, expected, arms, new_folder(settings.output)).run(told, say, stop)
        try:
            keep(result)
        except StorageError as error:  # the measurements took long, and are shown in any case
            say(f"the result is not stored with the study: {error}")
        return result


def _expected(settings: RecheckSettings, stack: ExitStack) -> tuple[Expected, Callable[[RecheckResult], None]]:
    """Return what is expected, and what stores the result with the study; a file's is stored nowhere."""
    if settings.study is not None and settings.study.endswith(SUFFIXES):
        return read_expected(Path(settings.study)), lambda result: None
    url = storage_url(settings.storage, create=False)
    store = stack.enter_context(closing(open_store(url)))
    record = find_study(store, settings.study)
    expected = expected_of(record, store.trials(record.name))
    stack.enter_context(study_lock(url, record.name))

    def keep(result: RecheckResult) -> None:
        known = (store.study(record.name) or record).facts.get(RECHECKS, [])
        store.update_study(record.name, facts={RECHECKS: [*known, result.document][-_MOST_KEPT:]})

    return expected, keep


def _with_model(expected: Expected, model: str) -> Expected:
    winner, reference = replace(expected.winner, model=model), expected.reference
    other = None if reference is None else replace(reference, model=model)
    tokenizer = model if expected.tokenizer == expected.winner.model else expected.tokenizer
    return replace(expected, winner=winner, reference=other, tokenizer=tokenizer)


def _arms(settings: RecheckSettings, expected: Expected, today: Sequence[Installation]) -> list[Arm]:
    if len(today) > 1:
        named = zip(settings.programs, today, strict=True)
        return [Arm(f"{each.title} ({program})", expected.winner, each) for program, each in named]
    if expected.reference is None or expected.gain is None:
        rule = "it keeps the reference, which has no gain that could be lost"
        remedy = "compare two versions: give {vllm} PATH twice"
        raise SettingError("study", expected.study, rule, remedy)
    return [Arm(each.name, each, today[0]) for each in expected.setups]


def _told(settings: RecheckSettings, expected: Expected, today: Sequence[Installation]) -> list[str]:
    """Return what changed since the study, of each installation."""
    if len(today) == 1:
        return changes(expected, today[0], settings.model)
    lines = []
    for program, each in zip(settings.programs, today, strict=True):
        lines += [f"{program}: {line}" for line in changes(expected, each, settings.model)]
        lines += [f"{program}: {line}" for line in flag_changes(today[0].info, each.info)]
    return lines


@dataclass(frozen=True)
class _Measurement:
    """What is measured: the servers, the one that the others are compared with first, and how they are judged."""

    settings: RecheckSettings
    expected: Expected
    arms: Sequence[Arm]
    folder: Path

    @property
    def is_matrix(self) -> bool:
        """Whether installations are compared, not configurations."""
        return self.arms[0].installation is not self.arms[-1].installation

    def run(self, told: Sequence[str], say: Say, stop: threading.Event) -> RecheckResult:
        """Measure, and return the result with the next step."""
        expected, arms, is_real = self.expected, self.arms, self.expected.provenance is Provenance.MEASURED
        alternation = Alternation(expected, arms, self.folder, stop, say)
        records = alternation.records
        loaded = load_warning() if is_real else None
        with SlowdownWatch([each.index for each in gpu_devices()] if is_real else []) as watch:
            alternation.run(self.settings.rounds, lambda: all(each.change.is_known for each in self._judged(records)))
        found, record = self._judged(records), self._beside_record(records)
        failed = [Change.WORSE] if record is not None and record.failed else []
        result = RecheckResult(
            study=expected.study,
            provenance=expected.provenance,
            at=datetime.now(UTC),
            versions=tuple(arm.installation.info.version for arm in arms),
            device=arms[0].installation.device,
            reference=arms[0].name,
            told=tuple(told),
            judged=found,
            record=record,
            verdict=gravest([*(each.change for each in found), *failed]),
            rounds=max((each.round for each in records), default=0),
            folder=self.folder,
            margin=self.settings.margin,
            disturbed=(*([] if loaded is None else [loaded]), *watch.warnings()),
            price=expected.price,
        )
        if self.settings.save is not None and all(each.fault is None for each in found):
            write_expected(self.settings.save, self._as_expected(records, found[-1]))
        return replace(result, next_step=self._next_step(result))

    def _judged(self, records: Sequence[TrialRecord]) -> tuple[Judged, ...]:
        """Return each server but the first beside the first."""
        promised = EQUAL if self.is_matrix else self.expected.gain or EQUAL
        return tuple(self._beside_first(records, place, promised) for place in range(1, len(self.arms)))

    def _beside_first(self, records: Sequence[TrialRecord], place: int, promised: Promise) -> Judged:
        goals, arms = self.expected.goals, self.arms
        every = StudyRounds(goals, records, len(looks(self.settings.rounds)) * (len(arms) - 1))
        fault, first_fault = _fault(records, place), _fault(records, 0)
        if fault is not None:
            return Judged(arms[place].name, None, promised, Change.WORSE, {}, fault)
        if first_fault is not None:
            reason = f"{arms[0].name} {first_fault}, so that nothing is compared with it"
            return Judged(arms[place].name, None, promised, Change.INCONCLUSIVE, {}, reason)
        score = every.score(place, 0)
        change = change_of(score, promised, self.settings.margin)
        metrics = {each.metric: every.beside(each.metric, place, 0) for each in goals.objectives}
        return Judged(arms[place].name, score, promised, change, metrics)

    def _beside_record(self, records: Sequence[TrialRecord]) -> Comparison | None:
        """Return the winner's metrics and SLOs beside the recorded ones; None for several installations.

        Metrics of another device or model are not compared. The SLOs hold there, too, if the winner met them.
        """
        expected, place = self.expected, len(self.arms) - 1
        if self.is_matrix or _fault(records, place) is not None:
            return None
        same = self.arms[0].installation.device == expected.device and self.settings.model is None
        slos = expected.goals.slos if expected.has_met_slos else ()
        return compared(expected.metrics if same else {}, slos, _repeats(records, place))

    def _as_expected(self, records: Sequence[TrialRecord], last: Judged) -> Expected:
        """Return what is expected from now on: today's gain and metrics, on today's installation."""
        today, place, score = self.arms[-1].installation, len(self.arms) - 1, last.score
        shown = replace(outcomes_of(records, place)[0], repeats=tuple(_repeats(records, place)))
        return replace(
            self.expected,
            version=today.info.version,
            device=today.device,
            drivers=today.devices.drivers,
            metrics=references(place, records, self.expected.metrics, shown),
            gain=self.expected.gain if self.is_matrix or score is None else Promise.of(vars(score)),
        )

    def _next_step(self, result: RecheckResult) -> str | None:
        """Return the command that follows from the verdict; None where there is nothing to do."""
        again = f"tuner recheck {as_text(shlex.quote(self.settings.study or self.expected.study))}"
        if result.verdict is Change.INCONCLUSIVE:
            programs = "".join(f" {{vllm}} {as_text(shlex.quote(each))}" for each in self.settings.programs)
            return f"{again}{programs} {{rounds}} {2 * self.settings.rounds}"
        if result.verdict is not Change.WORSE:
            return None
        if all(each.change is not Change.WORSE for each in result.judged):
            return f"{again} {{vllm}} BEFORE {{vllm}} TODAY, which tells the version from the machine"
        version = self.arms[-1].installation.info.version
        return retune(self.expected, version, _loads(self.expected, self.folder))


def _fault(records: Sequence[TrialRecord], place: int) -> str | None:
    """Return why an arm cannot be compared: its server failed; None if it did not."""
    failures = (outcome.failure for outcome in outcomes_of(records, place))
    return next((f"failed: {each.kind}: {each.message}" for each in failures if each is not None), None)


def _repeats(records: Sequence[TrialRecord], place: int) -> list[Repeat]:
    return [repeat for outcome in outcomes_of(records, place) for repeat in outcome.repeats]


def _loads(expected: Expected, folder: Path) -> list[str]:
    """Write the traffic of a study as files for `--workload`, and return their paths; none for a closed loop."""
    workload = expected.workload
    if isinstance(workload, ClosedLoop):
        return []
    loads = workload.loads if isinstance(workload, Suite) else {"traffic": workload}
    paths = []
    for name, load in loads.items():
        path = folder / f"{name}.yaml"
        path.write_text(yaml_text(load.model_dump(mode="json", exclude_none=True, exclude={"seed"})), encoding="utf-8")
        paths.append(str(path))
    return paths
