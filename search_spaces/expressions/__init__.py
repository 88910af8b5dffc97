"""The expressions of conditions and rules: the language, the facts of a context, and the values of names."""
