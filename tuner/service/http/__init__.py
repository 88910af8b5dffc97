"""The HTTP API of the service; the only place of FastAPI and Uvicorn."""
