"""The tuner's tables: their models, their rows as records, and the queries that find rows."""
