"""The client of the service: what Python and the terminal ask of a `tuner serve`.

It needs httpx and nothing of the server. `calls` describes requests and their answers once, and `client` sends them.
"""
