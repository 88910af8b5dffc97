"""The commands of `tuner traffic`: `import` and `cut`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.help import flag, option
from tuner.cli.options import pairs
from tuner.cli.output import pages
from tuner.settings.declared import read_duration

Output = Annotated[Path, option(None, "FILE", "Traffic file to write; requests go beside it.", "--output", "-o")]
AsJson = Annotated[bool, flag(None, "Print JSON.", "--json")]


def import_(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE|URL", help="Trace, log, data set, or an http URL.", show_default=False),
    ],
    output: Output = Path("traffic.yaml"),
    form: Annotated[
        str | None, option(None, "FORMAT", "Name of the format.", "--format", shown="the one that fits the file")
    ] = None,
    unit: Annotated[
        str | None, option(None, "UNIT", "Unit of the times: s, ms, us or ns.", shown="what the file tells")
    ] = None,
    block_tokens: Annotated[
        int | None,
        option(None, "INTEGER", "Tokens of a block of hash_ids.", least=1, shown="what the file tells"),
    ] = None,
    column: Annotated[
        list[str] | None,
        option(
            None,
            "WHAT=NAME",
            "Column of a table, for time, input, output, session, blocks or end.",
            shown="known names",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        option(None, "MODEL", "Folder or hub name whose tokenizer counts texts.", shown="4 characters a token"),
    ] = None,
    rate: Annotated[
        float | None, option(None, "NUMBER", "Requests/s, for a file without times.", shown="the file's times")
    ] = None,
    last: Annotated[str, option(None, "DURATION", "For Prometheus: how far back to read.")] = "1d",
    step: Annotated[str, option(None, "DURATION", "For Prometheus: time between two values.")] = "1m",
    select: Annotated[
        str, option(None, "LABELS", "For Prometheus: which series, such as 'model_name=\"chat\"'.", shown="all of vLLM")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Read recorded traffic into a traffic file.

    Reads traces of Azure, BurstGPT, Mooncake, Bailian, Splitwise, Vidur and WekaIO, CSV, LiteLLM's spend logs,
    OpenTelemetry's spans, Dynamo's traces, vLLM's log, and conversations such as ShareGPT. The file has times,
    lengths and numbers of shared blocks, no texts. What was left out is printed.

    tuner traffic import trace.jsonl -o traffic.yaml

    Lengths and times can be drawn from vLLM's counters in Prometheus:

    tuner traffic import http://prometheus:9090 --format prometheus --last 1d
    """
    settings = pages.traffic.ImportSettings(
        format=form,
        unit=unit,
        block_tokens=block_tokens,
        columns=pairs("column", column, "WHAT=NAME"),
        tokenizer=tokenizer,
        rate=rate,
    )
    asked = pages.traffic.CounterRange(read_duration("last", last), read_duration("step", step), select)
    pages.traffic.print_import(file, output, settings, asked, as_json=as_json)


def cut(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Traffic file that `import` wrote.", show_default=False)],
    requests: Annotated[int, option(None, "INTEGER", "Requests to keep.", least=2)] = 200,
    cache_tokens: Annotated[
        int | None,
        option(
            None,
            "INTEGER",
            "The server's KV cache in tokens, which `tuner study trial` has.",
            least=1,
            shown="endless",
        ),
    ] = None,
    output: Output = Path("short.yaml"),
    as_json: AsJson = False,
) -> None:
    """Cut imported traffic to a short benchmark.

    It keeps rate, bursts, lengths, and what a cache of the size finds of shared prefixes. A small cache may hold all of
    200 requests, and a part of the whole: tell its size. The distances to the whole are printed.

    tuner traffic cut traffic.yaml --requests 200 -o short.yaml
    """
    pages.traffic.print_cut(file, requests, output, cache_tokens, as_json=as_json)
