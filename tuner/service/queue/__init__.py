"""The queue's policy: plain data in, decisions out. Nothing here reads a clock, a file or a database."""
