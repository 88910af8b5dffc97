"""Check a submission as far as possible before it is queued, so that a mistake is answered at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tuner.engines.command_line import OTHER_ENGINES
from tuner.errors import SettingError
from tuner.service.asked.contents import with_files
from tuner.study.specification.builder import plan_study
from tuner.use_cases.keywords import Keywords
from tuner.use_cases.optimize import check_budget
from tuner.use_cases.simulated_engine import simulated_engine


def check_plan(keywords: Keywords, files: Mapping[str, str], kind: str, *, simulated: bool) -> None:
    """Refuse settings that cannot work.

    The model of a study that measures is left to its driver: only its machine knows whether it has it.

    Args:
        keywords: the settings.
        files: of the submission.
        kind: of the devices.
        simulated: whether the study is simulated.

    Raises:
        UserError: with the setting and the rule.
    """
    check_budget(keywords.budget())
    if keywords.engine in OTHER_ENGINES:
        rule = f"a service runs vLLM and simulations, and {keywords.engine} only `tuner optimize`"
        raise SettingError("engine", keywords.engine, rule, "give vllm, simulated or auto")
    if simulated:
        simulated_engine(keywords.gpu, keywords.vllm_version, keywords.preset, None)
    if not simulated and keywords.model is not None:
        return
    with TemporaryDirectory(prefix="tuner-check-") as folder:
        settings = with_files(keywords, files, Path(folder)).study_settings()
        plan_study(settings, on_cpu=kind == "cpu", simulated=True, card=None if simulated else kind)
