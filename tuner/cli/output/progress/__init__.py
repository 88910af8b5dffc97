"""The progress of a study while it runs."""
