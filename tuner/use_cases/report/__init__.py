"""The use case of `tuner study report`: what a report shows, and the file."""
