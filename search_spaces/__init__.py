"""Search spaces of an engine's flags, declared in YAML.

A space declares parameters, the conditions under which each counts, what each needs, rules that exclude combinations,
and named configurations. `docs/search-space.md` describes the file format. Typical use:

    space = load_space("vllm")                                   # or a path to a .yaml file
    context = Context(hardware_named("l4"), engine_version="0.25.1")
    resolved = space.resolve(context)                            # without what the context excludes
    config = resolved.suggest(trial)                             # an Optuna trial, or anything like it
    if not resolved.violations(config):
        rendered = resolved.render(config)                       # flags, environment, checkpoint

A configuration is a dictionary of values by parameter. A parameter that it leaves out, or that is None, keeps the
engine's default: the empty configuration renders to no flag.
"""

from search_spaces.catalogue.hardware import (
    HardwareProfile,
    Price,
    hardware_from_file,
    hardware_named,
    known_hardware,
    list_price,
    shared_currency,
)
from search_spaces.catalogue.models import ModelShape, known_model, known_models
from search_spaces.errors import SpaceError
from search_spaces.expressions import Context, version_tuple
from search_spaces.joined import ENGINE, JoinedSpace, join
from search_spaces.loader import load_space, parse_space, space_names
from search_spaces.parameter import Parameter, ParameterValue, Trial
from search_spaces.render import Rendered
from search_spaces.resolved import Dropped, ResolvedSpace, Violation
from search_spaces.schema import NamedConfig
from search_spaces.space import Space

__all__ = [
    "ENGINE",
    "Context",
    "Dropped",
    "HardwareProfile",
    "JoinedSpace",
    "ModelShape",
    "NamedConfig",
    "Parameter",
    "ParameterValue",
    "Price",
    "Rendered",
    "ResolvedSpace",
    "Space",
    "SpaceError",
    "Trial",
    "Violation",
    "hardware_from_file",
    "hardware_named",
    "join",
    "known_hardware",
    "known_model",
    "known_models",
    "list_price",
    "load_space",
    "parse_space",
    "shared_currency",
    "space_names",
    "version_tuple",
]
