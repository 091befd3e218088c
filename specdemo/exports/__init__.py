"""Records as JSON, an HTML replay, a GIF, and settings as code. Everything above `engines` may import this."""
