"""Records of the service beside the studies: submissions, events, owners, tokens, leases and an audit log."""
