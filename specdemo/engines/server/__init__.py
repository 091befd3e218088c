"""Servers: `ServerEngine` sends them requests and reads what they report of their rounds."""
