"""The result of a study: the winner, its gain over the defaults and the uncertainty of both."""
