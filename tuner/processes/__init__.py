"""Start, record, find and end processes, with everything that they start.

`identity` names one process and signals exactly that one. `family` finds and ends a process with everything that it
started. `records` keeps started processes on disk, `supervisor` starts them, `ports` leases ports, and `readiness`
waits for a server.
"""
