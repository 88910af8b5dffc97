"""What those who watch a service ask of its database: the figures of its queue, and the events sent to webhooks."""
