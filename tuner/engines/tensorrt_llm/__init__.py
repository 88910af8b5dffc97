"""TensorRT-LLM behind the interface `tuner.engines.base.Engine`. No server of it was ever run by this project."""
