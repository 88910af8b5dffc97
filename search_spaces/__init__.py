"""Search spaces of vLLM's flags, declared in YAML: what may be chosen, when, on what hardware, and its rendering."""

from search_spaces.errors import SpaceError
from search_spaces.expressions import version_tuple
from search_spaces.facts import Context, ModelShape
from search_spaces.hardware import HardwareProfile, hardware_from_file, hardware_named, known_hardware
from search_spaces.loader import load_space, space_names
from search_spaces.models import known_model, known_models
from search_spaces.parameter import Parameter, ParameterValue, Trial
from search_spaces.render import Rendered
from search_spaces.resolved import Dropped, NamedConfig, ResolvedSpace, Violation
from search_spaces.space import Space

__all__ = [
    "Context",
    "Dropped",
    "HardwareProfile",
    "ModelShape",
    "NamedConfig",
    "Parameter",
    "ParameterValue",
    "Rendered",
    "ResolvedSpace",
    "Space",
    "SpaceError",
    "Trial",
    "Violation",
    "hardware_from_file",
    "hardware_named",
    "known_hardware",
    "known_model",
    "known_models",
    "load_space",
    "space_names",
    "version_tuple",
]
