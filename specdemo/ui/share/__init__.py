"""A finished run as files to show to others: a page that replays it offline, and pictures. Needs no gradio."""
