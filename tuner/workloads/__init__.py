"""Workloads: what is sent to a server, when, and how the answers become metrics. Presets name a workload each."""
