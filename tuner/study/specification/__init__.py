"""From the user's settings to the specification of a study."""
