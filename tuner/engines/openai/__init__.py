"""The engine `openai`: any command that serves an OpenAI-compatible API."""
