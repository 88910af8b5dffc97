"""Made files of recorded traffic, written from the published description of each format, which its reader names."""

import json

MOONCAKE = "\n".join(
    json.dumps({"timestamp": at, "input_length": length, "output_length": 10, "hash_ids": blocks})
    for at, length, blocks in (
        (0, 1100, [0, 1, 2]),
        (1000, 1500, [0, 1, 3]),
        (3000, 512, [0]),
        (4000, 1100, [0, 1, 2]),
    )
)
"""Blocks of 512 tokens. The second prompt shares 1,024 tokens with the first, the third 512, the fourth all 1,100."""

BAILIAN = "\n".join(
    json.dumps(
        {
            "chat_id": chat,
            "parent_chat_id": parent,
            "timestamp": at,
            "input_length": length,
            "output_length": 5,
            "type": "text",
            "turn": turn,
            "hash_ids": blocks,
        }
    )
    for chat, parent, at, length, turn, blocks in (
        (7, -1, 0.5, 20, 1, [90, 91]),
        (8, -1, 1.0, 16, 1, [70]),
        (9, 7, 2.5, 40, 2, [90, 95, 96]),
        (12, 9, 9.5, 48, 3, [90, 95, 97]),
    )
)
"""Chats 7, 9 and 12 are one session, which shares blocks of 16 tokens."""

BURST_GPT_3 = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,11,1.5,ChatGPT,472,18,490,Conversation log
9,,0.5,ChatGPT,30,0,30,API log
45,11,2,ChatGPT,1087,230,1317,Conversation log
50,,1,GPT-4,417,276,693,API log
"""

LITELLM = json.dumps(
    [
        {
            "request_id": number,
            "call_type": call,
            "startTime": f"2026-01-02T10:00:0{second}.250000Z",
            "endTime": f"2026-01-02T10:00:0{second}.900000Z",
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "cache_hit": cache,
            "session_id": session,
            "status": status,
            "messages": {"secret": "Anna's address"},
        }
        for number, call, second, prompt, answer, cache, session, status in (
            ("a", "acompletion", 1, 100, 20, "False", "s1", "success"),
            ("a", "acompletion", 1, 100, 20, "False", "s1", "success"),
            ("b", "acompletion", 3, 150, 30, "False", "s1", "success"),
            ("c", "acompletion", 4, 150, 30, "True", "s2", "success"),
            ("d", "aembedding", 5, 90, 0, "False", None, "success"),
            ("e", "acompletion", 6, 90, 0, "False", None, "failure"),
        )
    ]
)


def dynamo(received_ms: int, length: int, hashes: list[int], session: str | None, **changes: object) -> str:
    """Return a line of Dynamo's request trace, as a file sink writes it."""
    request = {
        "request_id": f"r{received_ms}",
        "request_received_ms": received_ms,
        "output_tokens": 16,
        "replay": {"trace_block_size": 64, "input_length": length, "input_sequence_hashes": hashes},
        **changes,
    }
    event = {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": received_ms + 500,
        "agent_context": {"session_id": session} if session else None,
        "request": request,
    }
    return json.dumps({"timestamp": 1, "event": event}) + "\n"


DYNAMO = (
    dynamo(1_790_000_000_000, 128, [14879255164371896291, 5], "run:planner")
    + json.dumps({"event": {"schema": "dynamo.request.trace.v1", "event_type": "tool_end"}})
    + "\n"
    + dynamo(1_790_000_002_500, 150, [14879255164371896291, 5, 6], "run:planner")
    + dynamo(1_790_000_003_000, 64, [7], None, replay=None)
)


def span(number: str, parent: str, second: int, operation: str, **attributes: object) -> dict[str, object]:
    """Return a span of OTLP JSON."""
    values = [{"key": "gen_ai.operation.name", "value": {"stringValue": operation}}]
    for name, value in attributes.items():
        kind = {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}
        values.append({"key": f"gen_ai.{name.replace('__', '.')}", "value": kind})
    return {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": number,
        "parentSpanId": parent,
        "name": f"{operation} model",
        "startTimeUnixNano": str((1_790_000_000 + second) * 10**9),
        "endTimeUnixNano": str((1_790_000_001 + second) * 10**9),
        "attributes": values,
    }


SPANS = [
    span("eee19b7ec3c1b170", "", 0, "invoke_agent", usage__input_tokens=300, usage__output_tokens=60),
    span(
        "eee19b7ec3c1b171",
        "eee19b7ec3c1b170",
        1,
        "chat",
        usage__input_tokens=100,
        usage__output_tokens=20,
        conversation__id="c1",
    ),
    span(
        "eee19b7ec3c1b172",
        "eee19b7ec3c1b170",
        4,
        "chat",
        usage__prompt_tokens=200,
        usage__completion_tokens=40,
        conversation__id="c1",
    ),
    span("eee19b7ec3c1b173", "", 5, "embeddings", usage__input_tokens=7),
    span("eee19b7ec3c1b174", "", 6, "execute_tool"),
]
OTLP = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "made"}, "spans": SPANS}]}]}

VLLM_DEBUG = """(APIServer pid=7) INFO 12-31 23:59:58 [api_server.py:1] non-default args: {'model': 'm'}
(APIServer pid=7) DEBUG 12-31 23:59:58 [request_logger.py:51] Request cmpl-1 details: prompt: 'It\\'s Anna', prompt_token_ids: [5, 6, 7, 8], prompt_embeds shape: None.
(APIServer pid=7) INFO 12-31 23:59:58 [request_logger.py:65] Received request cmpl-1: params: SamplingParams(n=1, max_tokens=9), lora_request: None.
(APIServer pid=7) DEBUG 12-31 23:59:59 [request_logger.py:101] Generated response cmpl-1 (streaming complete) details: output_token_ids: [1, 2, 3]
(APIServer pid=7) INFO 12-31 23:59:59 [request_logger.py:108] Generated response cmpl-1 (streaming complete): output: 'abc', finish_reason: stop
(APIServer pid=7) INFO 01-01 00:00:03 [request_logger.py:65] Received request cmpl-2: params: SamplingParams(n=1, max_tokens=9), lora_request: None.
(APIServer pid=7) DEBUG 01-01 00:00:04 [request_logger.py:51] Request cmpl-3 details: prompt: 'x', prompt_token_ids: [5, 6], prompt_embeds shape: None.
(APIServer pid=7) INFO 01-01 00:00:05 [request_logger.py:108] Generated response cmpl-3: output: 'abcdefgh', finish_reason: length
"""  # noqa: E501
"""The lines of 0.32: the ids of the third answer are not logged, the second prompt is not."""

VLLM_OLD = """INFO 05-10 10:00:00 [logger.py:41] Received request chatcmpl-a: prompt: "Hi 'you', hello", params: SamplingParams(n=1), prompt_token_ids: None, prompt_embeds shape: None, lora_request: None.
INFO 05-10 10:00:01 [logger.py:71] Generated response chatcmpl-a (streaming complete): output: 'Yes!', output_token_ids: None, finish_reason: streaming_complete
"""  # noqa: E501

SHARE_GPT = json.dumps(
    [
        {
            "id": "a",
            "conversations": [
                {"from": "system", "value": "s" * 63},
                {"from": "human", "value": "h" * 63},
                {"from": "gpt", "value": "g" * 8},
                {"from": "human", "value": "i" * 63},
                {"from": "gpt", "value": "j" * 4},
            ],
        },
        {"id": "b", "conversations": []},
        {"id": "c", "conversations": [{"from": "system", "value": "s" * 63}, {"from": "human", "value": "k"}]},
        {
            "id": "d",
            "conversations": [
                {"from": "system", "value": "s" * 63},
                {"from": "human", "value": "k"},
                {"from": "gpt", "value": "l"},
            ],
        },
    ]
)
"""With four characters a token, the system prompt and its line end are one block of 16 tokens."""

WEKA = "\n".join(
    json.dumps({"id": name, "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": requests})
    for name, requests in (
        (
            "trace_0001",
            [
                {"t": 0.0, "type": "s", "model": "m", "in": 100, "out": 20, "hash_ids": [1, 2], "api_time": 3.0},
                {
                    "t": 5.0,
                    "type": "subagent",
                    "agent_id": "agent_001",
                    "requests": [{"t": 1.0, "type": "n", "in": 64, "out": 5, "hash_ids": [1], "api_time": 1.0}],
                },
                {"t": 8.0, "type": "s", "model": "m", "in": 150, "out": 30, "hash_ids": [1, 2, 3], "api_time": 2.0},
            ],
        ),
        (
            "trace_0002",
            [
                {"t": 0.0, "type": "n", "in": 64, "out": 7, "hash_ids": [1]},
                {"t": 2.0, "type": "subagent", "requests": [{"t": 2.5, "type": "n", "in": 9, "out": 4}]},
            ],
        ),
    )
)
"""Two conversations, each with a subagent: the first one's counts from its entry (5 + 1), the second's from 0 (2.5)."""
