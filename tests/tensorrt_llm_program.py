"""A `trtllm-serve` whose Python has the fake package `tensorrt_llm`."""

import shlex
import sys
from pathlib import Path

SITE = Path(__file__).parent / "fakes" / "tensorrt_llm_site"
VERSION = "1.3.0rc7"
_SCRIPT = """#!{python}
import sys
from tensorrt_llm.commands.serve import main
if __name__ == "__main__":
    sys.exit(main())
"""


def write_program(folder: Path) -> Path:
    """Write the program and its Python to `folder`, and return the program."""
    folder.mkdir(parents=True)
    python, program = folder / "python", folder / "trtllm-serve"
    words = shlex.join(["exec", "env", f"PYTHONPATH={SITE}", sys.executable])
    python.write_text(f'#!/bin/sh\n{words} "$@"\n', encoding="utf-8")
    program.write_text(_SCRIPT.format(python=python), encoding="utf-8")
    for file in (python, program):
        file.chmod(0o755)
    return program
