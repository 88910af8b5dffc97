"""What a server reports about itself: its log and its `/metrics`."""
