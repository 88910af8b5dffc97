"""The llama.cpp engine: GGUF models served by `llama-server` or by the package `xllamacpp`."""
