"""The use case of `tuner report`: what a report shows, and the file."""
