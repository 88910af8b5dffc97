"""From the settings of a study to its plan: all that is checked before an engine or the hardware is known.

Several engines of one study divide its settings. A text may name its engine: `llama.cpp=model.gguf`. Without one it is
the default engine's; a model is that of every engine whose format it has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from search_spaces import ModelShape, Space, SpaceError, load_space, space_names
from search_spaces.render import INSTANCES, gpus_of, instances_of, nodes_of, tensor_parallel_size, wrong_size
from search_spaces.schema import VLLM
from tuner.engines.command_line import check_server_arguments, sampling_arguments
from tuner.engines.kind import Feature, ModelForm
from tuner.engines.kinds import kind_of, with_feature
from tuner.engines.server.token_prompts import GGUF_SUFFIX
from tuner.engines.user_command import absolute_arguments, read_command
from tuner.errors import SettingError, UserError
from tuner.processes.secrets import REFERENCE, Secrets, is_secret_flag, is_secret_variable, url_passwords
from tuner.scoring.goals import Goals
from tuner.settings.declared import seconds_of
from tuner.settings.study import DEFAULT_PRESET, AskedSettings, StudySettings
from tuner.specs import Limits, ModelRef
from tuner.study.specification.configurations import are_flags, check_configuration, check_parameters
from tuner.study.specification.find_model import locate_others, longest_context, model_of, too_long
from tuner.study.specification.resolve_workload import check_price, check_requests, find_goals, find_workload
from tuner.study.specification.spec import ServerSettings
from tuner.workloads.presets import Preset, load_preset
from tuner.workloads.spec import Workload


@dataclass(frozen=True)
class StudyPlan:
    """A study before its engine and hardware are known; its settings are checked as far as possible.

    `given_server` has the given flags and variables, with references for secrets. `others` are the plans of further
    engines of the study; name, workload, goals and search are those of the first.
    """

    settings: StudySettings
    preset: Preset
    name: str
    model: ModelRef
    shape: ModelShape | None
    space: Space
    workload: Workload
    goals: Goals
    given_server: ServerSettings
    secrets: Secrets
    engine: str
    others: tuple[StudyPlan, ...] = ()

    @property
    def every(self) -> tuple[StudyPlan, ...]:
        """The plan of each engine, the default engine first."""
        return (self, *self.others)

    @property
    def server(self) -> ServerSettings:
        """Flags and environment of every server, the sampling temperature included."""
        given = self.given_server
        return replace(given, arguments=(*sampling_arguments(self.workload.temperature, self.engine), *given.arguments))

    @property
    def enqueue(self) -> tuple[str, ...]:
        """Texts of the configurations to enqueue: the preset's, which are vLLM's, then the user's."""
        return (*(self.preset.enqueue if self.engine == VLLM else ()), *self.settings.enqueue)

    @property
    def limits(self) -> Limits:
        """The deadlines of a trial."""
        return Limits(startup_s=seconds_of("startup_timeout", self.settings.startup_timeout))


def plan_study(
    settings: StudySettings,
    engines: Sequence[str] = (VLLM,),
    *,
    on_cpu: bool = False,
    simulated: bool = False,
    card: str | None = None,
) -> StudyPlan:
    """Check settings as far as possible without the engines.

    Args:
        settings: of the study.
        engines: that run it, the default engine first; a simulated one is vLLM.
        on_cpu: whether the workers have no GPU; the default space is then the one for CPUs.
        simulated: whether nothing is measured; the model's shape is then enough.
        card: key of the hardware, for the study's name; None for the preset's.

    Raises:
        UserError: for a setting that cannot work, or that names an engine that the study does not run.
    """
    parts = [settings_of_engine(settings, engine, engines, on_cpu=on_cpu) for engine in engines]
    gpus = gpus_of_engines(settings, engines)
    plans: list[StudyPlan] = []
    for engine, own in zip(engines, parts, strict=True):
        try:
            shared = replace(own, gpus_per_trial=gpus) if gpus > 1 else own
            plans.append(_plan(shared, engine, on_cpu=on_cpu, simulated=simulated, card=card))
        except SettingError as error:
            if len(engines) == 1 or error.field not in ("model", "space"):
                raise
            remedy = f"give that of this engine by {{{error.field}}} {engine}=…"
            raise SettingError(error.field, error.value, f"{engine}: {error.rule}", remedy) from None
    first, *others = plans
    if not others:
        return first
    secrets = Secrets({name: value for each in plans for name, value in each.secrets.values.items()})
    name = first.name if settings.study is not None else f"{first.name}-{'+'.join(engines)}"
    served = first.model.served_name
    same_name = tuple(replace(each, model=replace(each.model, served_name=served)) for each in others)
    return replace(first, name=name, secrets=secrets, others=same_name)


def _plan(settings: StudySettings, engine: str, *, on_cpu: bool, simulated: bool, card: str | None) -> StudyPlan:
    """Return the plan of one engine, without its share in a study of several."""
    preset = load_preset(settings.preset)
    space = declared_space(settings.space, preset, engine, on_cpu=on_cpu)
    name = default_name(settings, preset, card) if settings.study is None else settings.study
    if not _STUDY_NAME.fullmatch(name):
        rule = "a name starts with a letter or digit and has no slash"
        raise SettingError("study", name, rule, "choose another")
    server, secrets = _server(settings, engine)
    settings = replace(settings, server_arguments=server.arguments, env=server.environment)
    workload, gpus = find_workload(preset, settings), gpus_of_trial(settings)
    own, one_shape = not settings.files, gpus_of(server.arguments) >= gpus
    goals = find_goals(preset, workload, settings, own=own, gpus=gpus, one_shape=one_shape)
    model, shape = model_of(settings, preset.model, engine, simulated=simulated)
    check_price(settings.price)
    _check_gpus(settings, None if shape is None else shape.heads)
    longest = longest_context(shape, engine, server.arguments)
    if longest is not None and workload.longest_request > longest:
        raise too_long(workload, longest)
    sampling_arguments(workload.temperature, engine)
    if not simulated:
        check_requests(workload, engine, server.arguments)
    plan = StudyPlan(settings, preset, name, model, shape, space, workload, goals, server, secrets, engine)
    _check_names(plan)
    return replace(plan, settings=locate_others(settings, space, simulated=simulated))


def declared_space(name: str | None, preset: Preset, engine: str, *, on_cpu: bool) -> Space:
    """Return the space: the given one, or the engine's default.

    Raises:
        UserError: if there is no such space, or it is another engine's.
    """
    kind = kind_of(engine)
    default = kind.space or ("cpu" if on_cpu else preset.space)
    if kind.program is None and name is None:
        rule = "a command has flags of its own, and no space that is shipped has them"
        raise SettingError("space", None, rule, f"give {{space}} FILE.yaml, with the line 'engine: {engine}'")
    try:
        space = load_space(name or default)
    except SpaceError as error:
        raise UserError(str(error)) from None
    if space.engine != engine:
        rule = f"this space has the flags of {space.engine}, and the study runs {engine}"
        remedy = f"choose one of {', '.join(space_names(engine))}, or add {{engine}}"
        raise SettingError("space", name, rule, f"write 'engine: {engine}' into it" if kind.program is None else remedy)
    return space


def _check_names(plan: StudyPlan) -> None:
    """Refuse names of parameters and configurations that the declared space does not have."""
    for text in plan.enqueue:
        check_configuration(plan.space, "enqueue", text)
    baseline = plan.settings.baseline
    if baseline is not None and not are_flags(baseline):
        check_configuration(plan.space, "baseline", baseline)
    for name in plan.settings.only:
        check_parameters(plan.space, "only", name, (name,))


_STUDY_NAME = re.compile(r"[^\W_][\w .+=@-]*")
_SHORT = {"max_concurrency": "users", "num_prompts": "prompts", "input_len": "in", "output_len": "out"}


def default_name(settings: AskedSettings, preset: Preset, card: str | None) -> str:
    """Return the preset's name, followed by what the settings change, such as `llama-3.1-8b-h100-users32`."""
    model, changed_card = settings.model, card if card not in (None, preset.hardware) else None
    parts = [preset.name]
    if model is not None or (changed_card is not None and preset.name == DEFAULT_PRESET):
        parts = [*([preset.name] if preset.name != DEFAULT_PRESET else []), Path(model or preset.model).name.lower()]
    parts += [] if changed_card is None else [changed_card]
    parts += _workload_parts(settings)
    return "-".join(filter(None, (re.sub(r"[^\w.+]+", "-", part).strip("-._+") for part in parts))) or preset.name


def _workload_parts(settings: AskedSettings) -> list[str]:
    parts = [Path(file).stem for file in settings.files]
    parts += [] if settings.rate is None else [f"rate{settings.rate:g}"]
    return parts + [f"{_SHORT.get(name, name)}{value:g}" for name, value in settings.replacements.items()]


def settings_of_engine(settings: StudySettings, engine: str, engines: Sequence[str], *, on_cpu: bool) -> StudySettings:
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
    """Return the engine that a text names, and the rest; None if it names none."""
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
    """Return the model of an engine: the one that names it, else one in its format."""
    pairs = [_split("model", text, engines) for text in _given(settings.model, settings.other_models)]
    own = [rest for owner, rest in pairs if owner == engine]
    plain = [rest for owner, rest in pairs if owner is None]
    if len(engines) > 1:
        form = kind_of(engine).model_form
        of_format = [each for each in plain if each.endswith(GGUF_SUFFIX) == (form is ModelForm.GGUF)]
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
    """Return the parameters to search of an engine: those that name it, and those that its space has."""
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


def gpus_of_trial(settings: AskedSettings) -> int:
    """Return the GPUs of a trial; at least one on each node."""
    if settings.gpus_per_trial is not None:
        return settings.gpus_per_trial
    return max(gpus_of(settings.server_arguments), settings.nodes_per_trial)


def gpus_of_engines(settings: StudySettings, engines: Sequence[str]) -> int:
    """Return the GPUs of a trial: those that are asked for, else the most that the flags of one engine need.

    Raises:
        SettingError: for flags of an engine that the study does not run.
    """
    flags = [tuple(_flags(settings.server_arguments, each, engines)) for each in engines]
    return max(gpus_of_trial(replace(settings, server_arguments=each)) for each in flags)


def _check_gpus(settings: StudySettings, heads: int | None) -> None:
    """Refuse servers that do not fit into the GPUs of a trial, and tensor parallelism that vLLM refuses."""
    given, arguments = settings.gpus_per_trial, settings.server_arguments
    wrong = wrong_size(arguments)
    if wrong is not None:
        raise SettingError(
            "server_arguments", wrong, "a whole number of at least 1 is needed", "give one after the flag"
        )
    needed, size = gpus_of(arguments), tensor_parallel_size(arguments)
    if given is not None and needed > given:
        rule = f"the server's own flags need {needed} GPUs"
        raise SettingError("gpus_per_trial", given, rule, f"give {needed}, or leave it out")
    _check_nodes(settings)
    if heads is not None and heads % size:
        rule = f"the model has {heads} attention heads, which {size} does not divide"
        raise SettingError("server_arguments", f"--tensor-parallel-size {size}", rule, "choose a divisor")


def _check_nodes(settings: StudySettings) -> None:
    """Refuse GPUs that cannot be spread over the nodes of a trial, and servers that start on one machine."""
    nodes, gpus, arguments = settings.nodes_per_trial, gpus_of_trial(settings), settings.server_arguments
    if gpus % nodes:
        rule = f"each node of a trial has as many GPUs, and {nodes} nodes do not divide them"
        raise SettingError("gpus_per_trial", gpus, rule, f"give a multiple of {nodes}")
    if nodes == 1:
        return
    if instances_of(arguments) > 1:
        rule = f"instances start on one machine, and a trial has {nodes} nodes"
        raise SettingError("server_arguments", INSTANCES, rule, "leave it out, or leave out {nodes_per_trial}")
    needed, used = gpus_of(arguments), nodes_of(arguments, gpus // nodes, nodes)
    if needed % used:
        rule = f"the server's own flags need {needed} GPUs, which {used} nodes cannot share evenly"
        raise SettingError("nodes_per_trial", nodes, rule, "give a divisor, or change the flags")


def _server(settings: StudySettings, engine: str) -> tuple[ServerSettings, Secrets]:
    """Return every server's flags, variables and command, with references for secrets, and the secrets."""
    check_server_arguments(settings.server_arguments, engine)
    given = ServerSettings(tuple(settings.server_arguments), settings.env, tuple(settings.secret))
    kind = kind_of(engine)
    if kind.program is None and settings.server_command is not None:  # it runs in the current folder
        given = replace(given, command=read_command(settings.server_command), folder=os.getcwd())
    server, secrets = refer_to_secrets(given, os.environ, move=kind.moves_secrets)
    arguments = server.arguments if kind.program is None else absolute_arguments(server.arguments)
    return replace(server, arguments=arguments), secrets


_VARIABLES_OF_FLAGS = {"--api-key": "VLLM_API_KEY", "--hf-token": "HF_TOKEN"}
"""Flags of vLLM whose value it also reads from a variable, which other users of the machine cannot see."""


def refer_to_secrets(
    server: ServerSettings, environment: Mapping[str, str], *, move: bool = True
) -> tuple[ServerSettings, Secrets]:
    """Return the settings with references for secrets, and the values of everything that they refer to.

    A variable of a server that is a secret becomes a reference to a variable of the same name. A flag of
    `_VARIABLES_OF_FLAGS` becomes the variable.

    Raises:
        SettingError: for a secret flag with a literal value, and for a reference to a variable that is not set.
    """
    values: dict[str, str] = {}
    variables: dict[str, str] = {}
    for name, value in server.environment.items():
        secret = is_secret_variable(name) or name in server.secrets or bool(url_passwords(value))
        if secret and not REFERENCE.search(value):
            values[name], variables[name] = value, f"${{{name}}}"
        else:
            variables[name] = value
            _look_up(value, "env", environment, values)
    arguments, command = _checked(server.arguments, server.secrets), _checked(server.command, server.secrets)
    if move and not command:
        arguments = _move_to_variables(arguments, variables)
    for argument in (*arguments, *variables.values()):
        _look_up(argument, "server_arguments", environment, values)
    for word in command:
        _look_up(word, "server_command", environment, values)
    return replace(server, arguments=arguments, environment=variables, command=command), Secrets(values)


def _checked(arguments: tuple[str, ...], secrets: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arguments, a secret flag and its value as two words."""
    words: list[str] = []
    secret_flag: str | None = None
    for word in arguments:
        flag, equals, value = word.partition("=")
        if word.startswith("-"):
            secret = is_secret_flag(flag) or flag.lstrip("-") in {name.lstrip("-") for name in secrets}
            secret_flag = flag if secret else None
            if secret and equals:
                _check_value(flag, value)
                words += [flag, value]
                continue
        elif secret_flag is not None:
            _check_value(secret_flag, word)
        if url_passwords(word):
            raise _literal(flag if word.startswith("-") else "a URL with a password")
        words.append(word)
    return tuple(words)


def _check_value(flag: str, value: str) -> None:
    if not REFERENCE.fullmatch(value):
        raise _literal(flag)


def _literal(what: str) -> SettingError:
    rule = "a secret is not given literally: it would have to be stored"
    return SettingError("server_arguments", what, rule, "refer to an environment variable, such as '${VLLM_API_KEY}'")


def _move_to_variables(arguments: tuple[str, ...], variables: dict[str, str]) -> tuple[str, ...]:
    """Return the arguments without the flags of `_VARIABLES_OF_FLAGS`, whose values become variables."""
    left: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        variable = _VARIABLES_OF_FLAGS.get(word.replace("_", "-"))
        if variable is None or not words or not REFERENCE.fullmatch(words[0]):
            left.append(word)
            continue
        variables[variable] = words.pop(0)
        if words and REFERENCE.fullmatch(words[0]):
            raise SettingError("server_arguments", word, "only one value is possible", "leave the others out")
    return tuple(left)


def _look_up(text: str, field: str, environment: Mapping[str, str], values: dict[str, str]) -> None:
    """Add the variables that a text refers to."""
    for name in REFERENCE.findall(text):
        if name in values:
            continue
        if name not in environment:
            rule = f"the environment has no variable {name}"
            raise SettingError(field, f"${{{name}}}", rule, f"set it: export {name}=…")
        values[name] = environment[name]
