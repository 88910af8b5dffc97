"""What the commands print: progress, tables and text."""
