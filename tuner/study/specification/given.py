"""Plan a study of several engines: divide its settings among them, and check each engine's part.

A text may name its engine: `llama.cpp=model.gguf`. Without one it is the default engine's; a model is that of every
engine whose format it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tuner.engines.kind import Feature, ModelForm
from tuner.engines.kinds import kind_of, with_feature
from tuner.errors import SettingError
from tuner.processes.secrets import Secrets
from tuner.settings.study import StudySettings
from tuner.study.specification.builder import declared_space, plan_study
from tuner.study.specification.plans import StudyPlan
from tuner.study.specification.settings import gpus_of_trial
from tuner.workloads.presets import load_preset

GGUF = ".gguf"


def plan_engines(
    settings: StudySettings,
    engines: Sequence[str],
    *,
    on_cpu: bool = False,
    simulated: bool = False,
    card: str | None = None,
) -> StudyPlan:
    """Check settings as far as possible without the engines; see `plan_study`.

    Args:
        settings: of the study.
        engines: that run it, the default engine first.
        on_cpu: whether the workers have no GPU.
        simulated: whether nothing is measured.
        card: key of the hardware, for the study's name.

    Raises:
        UserError: for a setting that cannot work, or that names an engine that the study does not run.
    """
    parts = [settings_of(settings, engine, engines, on_cpu=on_cpu) for engine in engines]
    gpus = gpus_of_engines(settings, engines)
    if gpus > 1:
        parts = [replace(each, gpus_per_trial=gpus) for each in parts]
    named = [_plan(each, engine, engines, on_cpu, simulated, card) for each, engine in zip(parts, engines, strict=True)]
    first, *others = named
    if not others:
        return first
    secrets = Secrets({name: value for each in named for name, value in each.secrets.values.items()})
    name = first.name if settings.study is not None else f"{first.name}-{'+'.join(engines)}"
    served = first.model.served_name
    same_name = [replace(each, model=replace(each.model, served_name=served)) for each in others]
    return replace(first, name=name, secrets=secrets, others=tuple(same_name))


def gpus_of_engines(settings: StudySettings, engines: Sequence[str]) -> int:
    """Return the GPUs of a trial: those that are asked for, else the most that the flags of one engine need.

    Raises:
        SettingError: for flags of an engine that the study does not run.
    """
    flags = [tuple(_flags(settings.server_arguments, each, engines)) for each in engines]
    return max(gpus_of_trial(replace(settings, server_arguments=each)) for each in flags)


def _plan(
    settings: StudySettings, engine: str, engines: Sequence[str], on_cpu: bool, simulated: bool, card: str | None
) -> StudyPlan:
    try:
        return plan_study(settings, on_cpu=on_cpu, simulated=simulated, card=card, engine=engine)
    except SettingError as error:
        if len(engines) == 1 or error.field not in ("model", "space"):
            raise
        remedy = f"give that of this engine by {{{error.field}}} {engine}=…"
        raise SettingError(error.field, error.value, f"{engine}: {error.rule}", remedy) from None


def settings_of(settings: StudySettings, engine: str, engines: Sequence[str], *, on_cpu: bool) -> StudySettings:
    """Return the settings of one engine of a study, without those of the others.

    Raises:
        SettingError: for a text that names an engine that the study does not run.
    """
    given = settings.baseline
    spaces = [*_own("space", _given(settings.space, settings.other_spaces), engine, engines)]
    if len(spaces) > 1:
        raise SettingError("space", spaces[1], f"{engine} has one space, and two are given", "leave one out")
    own = replace(
        settings,
        model=_model(settings, engine, engines),
        other_models=(),
        space=next(iter(spaces), None),
        other_spaces=(),
        enqueue=tuple(_own("enqueue", settings.enqueue, engine, engines)),
        baseline=None if given is None else next(_own("baseline", [given], engine, engines), None),
        server_arguments=tuple(_flags(settings.server_arguments, engine, engines)),
    )
    if len(engines) == 1:
        return own
    if engine != engines[0]:
        own = replace(own, tokenizer=None, checkpoint={}, draft_model=None)
    return replace(own, only=_only(own, engine, engines, on_cpu=on_cpu))


def _given(first: str | None, others: Sequence[str]) -> list[str]:
    return [*([] if first is None else [first]), *others]


def _split(field: str, text: str, engines: Sequence[str]) -> tuple[str | None, str]:
    """Return the engine that a text names, and the rest; None if it names none.

    Raises:
        SettingError: for an engine that the study does not run.
    """
    engine, equals, rest = text.partition("=")
    if not equals or engine not in with_feature(Feature.BESIDE_OTHERS):
        return None, text
    if engine not in engines:
        rule = f"this study runs {' and '.join(engines)}, not {engine}"
        raise SettingError(field, text, rule, f"add {{engine}} {engine}, or leave it out")
    return engine, rest


def _own(field: str, texts: Sequence[str], engine: str, engines: Sequence[str]) -> Iterator[str]:
    """Yield the texts of an engine, without its name."""
    for text in texts:
        owner, rest = _split(field, text, engines)
        if (owner or engines[0]) == engine:
            yield rest


def _model(settings: StudySettings, engine: str, engines: Sequence[str]) -> str | None:
    """Return the model of an engine: the one that names it, else one in its format.

    Raises:
        SettingError: without one, and for two.
    """
    pairs = [_split("model", text, engines) for text in _given(settings.model, settings.other_models)]
    own = [rest for owner, rest in pairs if owner == engine]
    plain = [rest for owner, rest in pairs if owner is None]
    if len(engines) > 1:
        form = kind_of(engine).model_form
        of_format = [each for each in plain if each.endswith(GGUF) == (form is ModelForm.GGUF)]
        own = own or of_format
        if not own and (plain or form is ModelForm.GGUF):
            rule = f"{engine} serves {form}, and none is given"
            raise SettingError("model", " ".join(plain) or None, rule, f"add {{model}} {engine}=MODEL")
    found = own or plain
    if len(found) > 1:
        raise SettingError("model", found[1], f"{engine} serves one model, and two are given", "leave one out")
    return next(iter(found), None)


def _flags(words: Sequence[str], engine: str, engines: Sequence[str]) -> Iterator[str]:
    """Yield an engine's words of the server's flags: those after `ENGINE=`, the first ones are the default engine's."""
    owner = engines[0]
    for word in words:
        named, rest = _split("server_arguments", word, engines)
        owner = named or owner
        if owner == engine and (rest or named is None):
            yield rest


def _only(own: StudySettings, engine: str, engines: Sequence[str], *, on_cpu: bool) -> tuple[str, ...]:
    """Return the parameters to search of an engine: those that name it, and those that its space has.

    Raises:
        SettingError: for a name that no engine's space has, or if none is of this engine.
    """
    given = own.only
    if not given:
        return ()
    declared = declared_space(own.space, load_preset(own.preset), engine, on_cpu=on_cpu).parameter_names
    found = []
    for name in given:
        owner = next((each for each in engines if name.startswith(f"{each}.")), None)
        short = name.removeprefix(f"{engine}.")
        if owner == engine or (owner is None and name in declared):
            found.append(short)
    if not found:
        remedy = f"name one of {engine}, such as {engine}.{declared[0]}"
        raise SettingError("only", " ".join(given), f"none of these is a parameter of {engine}", remedy)
    return tuple(found)
