"""Start, record, find and end processes, with everything that they start.

`family` identifies a process, and finds and ends it with everything that it started. `records` keeps a record of each
started process on disk, `supervisor` starts processes, `watchdog` ends them when their worker was killed, `ports`
leases ports, `readiness` waits for a server, and `secrets` keeps secret values out of everything that is stored.
"""
