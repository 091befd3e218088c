"""Records as files: JSON, a page that replays a run offline, an animation; and settings as code."""
