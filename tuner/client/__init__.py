"""The client of the service: what Python and the terminal ask of a `tuner serve`.

It needs httpx and nothing of the server. `calls` and `replies` describe requests and answers without sending anything;
`client` and `async_client` send them.
"""
