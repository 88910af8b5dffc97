"""Workloads: the requests to a server, their times, and the metrics of the answers. Presets name a workload each."""
