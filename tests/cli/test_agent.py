"""`tuner mcp`: the public Python SDK's client over standard input and output, against a running service."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.server.mcpserver import MCPServer

from records.trials import Provenance, StudyRecord
from storage.service.records import SubmissionState
from tests.cli.command import one_line, run_here
from tests.served import Served, serving
from tuner.client.client import AsyncClient
from tuner.use_cases.agent import tools

NOW = datetime(2026, 11, 28, tzinfo=UTC)
SCORE = {"ratio": 1.2, "low": 1.1, "high": 1.3, "rounds": 4}
CONCLUSION = {"winner": 7, "reason": "r", "contenders": [{"number": 7, "score": SCORE}], "front": {"trials": []}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("service")) as running:
        yield running


def as_agent(served: Served, token: str, story: Callable[[Client], Awaitable[None]]) -> None:
    """Run a story with the SDK's client on the tools of `tuner mcp` in this process."""

    async def run() -> None:
        async with AsyncClient(served.url, token=served.tokens[token]) as own:
            server = MCPServer("tuner")
            for tool in tools(own):
                server.add_tool(tool)
            async with Client(server) as client:
                await story(client)

    asyncio.run(run())


def as_program(served: Served, token: str, story: Callable[[Client], Awaitable[None]]) -> None:
    """Start `tuner mcp` with a token, and run a story with the SDK's client."""
    variables = {**os.environ, "TUNER_SERVER": served.url, "TUNER_TOKEN": served.tokens[token]}
    program = StdioServerParameters(
        command=sys.executable, args=["-m", "tuner.cli.main", "mcp"], env=variables, cwd=str(served.folder)
    )

    async def run() -> None:
        async with Client(program) as client:
            await story(client)

    asyncio.run(run())


async def called(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return what a tool answered."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    found: dict[str, Any] = json.loads(result.content[0].text)  # type: ignore[union-attr]
    return found


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    """Return the text of a tool's error."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return str(result.content[0].text)  # type: ignore[union-attr]


def test_the_story_what_if_submit_watch_verdict(served: Served) -> None:
    async def story(client: Client) -> None:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["what_if", "submit", "watch", "verdict"]
        predicted = await called(client, "what_if", settings={"gpu": "h200", "num_prompts": 8})
        assert (predicted["provenance"], predicted["num_prompts"]) == ("simulated", 8)
        assert predicted["output_throughput"] > 0
        asked = {"engine": "simulated", "trials": 2}
        assert (await called(client, "submit", settings=asked, id="by-agent"))["state"] == "QUEUED"
        served.start("by-agent")
        waiting = await called(client, "watch", id="by-agent", seconds=0.1)
        assert waiting["state"] == "RUNNING"
        served.end("by-agent", SubmissionState.DONE, "done")
        assert (await called(client, "watch", id="by-agent"))["state"] == "DONE"
        assert (await called(client, "verdict", id="by-agent"))["conclusion"] is None
        served.store.create_study(StudyRecord("by-agent", NOW, Provenance.SIMULATED, {}, {}, CONCLUSION))
        found = await called(client, "verdict", id="by-agent")
        assert found["intervals"] == "95 % interval"
        assert found["conclusion"]["winner"] == 7
        assert found["conclusion"]["contenders"][0]["score"] == SCORE
        assert "front" not in found["conclusion"]

    as_program(served, "ada", story)


def test_the_rights_are_those_of_the_token(served: Served) -> None:
    served.submit("of-ada")

    async def story(client: Client) -> None:
        assert "of-ada" in await refusal(client, "verdict", id="of-ada")
        assert "files of this machine" in await refusal(client, "submit", settings={"workload": "/etc/passwd"})
        assert "trials" in await refusal(client, "submit", settings={"trials": 0})

    as_agent(served, "ben", story)

    async def viewing(client: Client) -> None:
        assert await refusal(client, "submit", settings={"trials": 2})

    as_agent(served, "eve", viewing)


@pytest.mark.parametrize(("token", "part"), [(None, "TUNER_TOKEN"), ("tuner_wrong", "token")])
def test_without_a_valid_token_it_ends_in_one_line(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None, part: str
) -> None:
    monkeypatch.setenv("TUNER_SERVER", served.url)
    monkeypatch.delenv("TUNER_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("TUNER_TOKEN", token)
    one_line(run_here(tmp_path, "mcp"), part)


def test_without_the_package_it_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    one_line(run_here(tmp_path, "mcp"), "pip install 'llm-serving-tuner[mcp]'")
