"""What the service stores beside the studies: submissions, events, owners, tokens, leases and an audit log."""
