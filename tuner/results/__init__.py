"""The findings of a study as texts and tables without a layout, which the terminal and the report both show."""
