"""SGLang behind the interface `tuner.engines.base.Engine`."""
