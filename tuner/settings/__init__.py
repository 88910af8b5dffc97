"""The settings of a study, each declared once ([design](../../docs/extending.md#a-setting))."""
