"""The engines of a study: find them and refuse settings that do not fit them."""
