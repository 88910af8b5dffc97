"""The command line: one small file a family of commands, heavy imports inside them."""
