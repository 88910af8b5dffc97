"""The commands that write the files of a study, or open its pages."""
