"""Requests for a study: the settings of a submission, the rules of a server for them, and their contents."""
