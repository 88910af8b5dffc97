"""The service: studies from several people on shared devices (docs/design/service.md)."""
