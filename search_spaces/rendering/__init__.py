"""Between configurations and command lines: renders a configuration, and reads the study's own server arguments."""
