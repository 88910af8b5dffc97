"""The client of the service: requests of Python programs and of the terminal to `tuner serve`.

It needs httpx and nothing of the server. `calls` describes requests and their answers once, and `client` sends them.
"""
