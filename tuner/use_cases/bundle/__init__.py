"""The use case of `tuner report --bundle`: an archive of a study to attach to an issue, without what is private."""
