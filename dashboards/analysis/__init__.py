"""Tables computed from the records of a study."""
