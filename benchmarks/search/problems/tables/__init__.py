"""Problems that replay recorded tables of real measurements."""
