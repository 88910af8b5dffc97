"""What the servers of all engines share: start, wait, measure, stop, types of failures. It knows no engine."""
