"""The use cases that write the files of a study: its script, deployment files, and what it leaves at its end."""
