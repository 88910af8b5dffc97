"""The service: studies of several people on shared devices, see docs/design/service.md."""
