"""A study before its engine and hardware are known, and what several engines of one study are given."""
