"""What a study found, as texts and tables without a form: the terminal and the report show the same ones."""
