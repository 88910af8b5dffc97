"""What the service stores beside the studies: submissions and their events, owners, tokens, leases and the audit log."""
