"""Engines: what turns a prompt into rounds. All speak `Decoder`."""
