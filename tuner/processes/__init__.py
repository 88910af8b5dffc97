"""Start, record, find and end processes, with everything that they start.

`family` names one process, and finds and ends a process with everything that it started. `records` keeps started
processes on disk, `supervisor` starts them, `watchdog` ends them after a kill, `ports` leases ports, `readiness` waits
for a server, and `secrets` keeps values out of everything that is stored.
"""
