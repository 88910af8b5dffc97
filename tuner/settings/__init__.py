"""The settings of a study, each declared once ([design](../../docs/design/settings.md))."""
