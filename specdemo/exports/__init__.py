"""Records as JSON, an HTML replay, a GIF, and settings as code. Everything above `models` may import this."""
