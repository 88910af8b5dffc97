"""The use case of `tuner mcp`: an MCP server over standard input and output, through which an agent uses a service.

The agent has the rights and the quota of the caller's token, and no others. It names presets, cards and values: this
server reads no file of the machine for it, because a file's content would be sent to the service.
This is the only module that imports `mcp`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from tuner.client.client import AsyncClient
from tuner.client.replies import SubmittedStudy
from tuner.confidence import INTERVAL
from tuner.errors import TunerError, UserError
from tuner.extras import remedy

FILES = ("workload", "space", "quality_task")
"""Settings whose values name files of this machine, and would send them."""

LONGEST_WATCH_S = 300.0
"""An agent's program gives up a call that takes longer than some minutes."""

INSTRUCTIONS = """tuner finds the flags with which an LLM server is fastest within its SLOs. Ask `what_if` before you
submit: it predicts in seconds. `submit` queues a study, `watch` waits for it, `verdict` has the result with intervals.
Figures of `what_if`, and of studies whose provenance is simulated, are predicted, not measured: say so."""

SHOWN = ["winner", "keeps", "confirmed", "reason", "rounds", "reference", "contenders", "flag_effects", "nearest"]
SHOWN += ["slos", "demand", "headroom", "spares", "notes", "shapes"]
"""What an agent gets of a conclusion; the last ones are of servers for a load."""

Tool = Callable[..., Awaitable[dict[str, Any]]]


async def serve_agent(server: str | None, *, insecure: bool) -> None:
    """Serve an agent until standard input ends.

    Raises:
        UserError: without the package or a token, and if the service refuses the token.
    """
    program = _library()
    async with AsyncClient(server, insecure=insecure) as client:
        await client.queue()  # an invalid token is refused before an agent starts
        served = program.MCPServer("tuner", instructions=INSTRUCTIONS, log_level="WARNING")
        for tool in tools(client):
            served.add_tool(tool)
        await served.run_stdio_async()


def _library() -> Any:
    try:
        return import_module("mcp.server.mcpserver")
    except ModuleNotFoundError:
        raise UserError(f"`tuner mcp` needs the package mcp, version 2; {remedy('mcp')}") from None


def _refused(text: str) -> Exception:
    """Return the error whose text an agent gets; others are taken for errors of this program."""
    error: Exception = import_module("mcp.server.mcpserver.exceptions").ToolError(text)
    return error


def tools(client: AsyncClient) -> list[Tool]:
    """Return the tools of an agent; their docstrings and types are what it reads."""

    async def what_if(settings: dict[str, Any]) -> dict[str, Any]:
        """Predict one configuration in seconds: metrics with error bands. Nothing is started or stored.

        `settings` are keywords of `tuner.optimize`, such as {"preset": "chat", "gpu": "h200", "server_arguments":
        ["--max-num-seqs", "64"]}.
        """
        found = await _answered(client.predict(_without_files(settings)))
        return {name: value for name, value in found.items() if name != "figures"}  # plots of the page

    async def submit(settings: dict[str, Any], id: str | None = None) -> dict[str, Any]:
        """Submit a study, which takes devices of the caller's quota; return its id and state.

        `settings` are keywords of `tuner.optimize`, such as {"preset": "chat", "trials": 40}. With {"size": true,
        "card": ["l4", "h100"]} it finds how many servers the load needs. The same `id` with the same settings is
        submitted once.
        """
        named = settings if id is None else {**settings, "id": id}
        return _state(await _answered(client.submit(**_without_files(named))))

    async def watch(id: str, seconds: float = 60.0) -> dict[str, Any]:
        """Wait until a study has ended, for so many seconds, and return its state and progress."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(seconds, LONGEST_WATCH_S))):
                return _state(await _answered(client.wait(id)))
        return _state(await _answered(client.study(id)))

    async def verdict(id: str) -> dict[str, Any]:
        """Return the conclusion of a study: winner, reason, and each finalist's score and metrics with intervals."""
        found, study = await _answered(client.conclusion(id)), await _answered(client.study(id))
        conclusion = None if found is None else {name: found[name] for name in SHOWN if name in found}
        provenance = next((each.provenance for each in await _answered(client.trials(id)) if each.provenance), None)
        return {**_state(study), "provenance": provenance, "intervals": INTERVAL, "conclusion": conclusion}

    return [what_if, submit, watch, verdict]


async def _answered(asked: Awaitable[Any]) -> Any:
    """Return an answer of the service; a refusal is the text that the agent gets."""
    try:
        return await asked
    except TunerError as error:
        raise _refused(str(error)) from None


def _without_files(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings; one that names a file is refused."""
    for name in FILES:
        if settings.get(name) is not None:
            raise _refused(f"{name}: an agent names no files of this machine; choose a preset, or submit it by hand")
    return settings


def _state(study: SubmittedStudy) -> dict[str, Any]:
    progress = study.progress
    return {
        "id": study.id,
        "state": study.state.value,
        "reason": study.reason,
        "waits_for": study.waits_for,
        "kind": study.kind,
        "gpu_seconds": study.gpu_seconds,
        "progress": None if progress is None else json.loads(json.dumps(vars(progress))),
    }
