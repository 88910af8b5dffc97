"""The load generator: sends a plan of requests to a running server and writes down what came of each.

It is a program of its own, `python -m tuner.loadgen PLAN RESULT`, so that neither the tuner's threads nor a server's
can keep it from sending on time. Decisions:

1. The plan is data: every request with its time, its prompt and its length is made before the first is sent, and its
   body is encoded before the first is sent.
2. Every request of the plan has a record, whatever happened to it, also when the run is cut off.
3. Bytes are stamped as they arrive and read when the answer is over: nothing is parsed between two tokens.
4. It watches itself: how late it sent what it could have sent, and how late its own loop woke up.
"""
