"""The use cases that compare answers: `tuner quality`, and the check of a study with an SLO on quality."""
