"""The load generator: send a plan of requests to a running server and record the result of each.

It is a program of its own, `python -m tuner.loadgen PLAN RESULT`, so that threads of the tuner do not delay its
requests. Decisions:

1. The plan is data. Every request has its time, prompt and length, and its encoded body, before the first is sent.
2. Every request of the plan has a record, also if it fails or the run is cut off.
3. Bytes get a time stamp when they arrive and are parsed when the answer is complete. Nothing is parsed between tokens.
4. The generator measures its own delays: how late it sends requests and how late its event loop wakes up.
"""
