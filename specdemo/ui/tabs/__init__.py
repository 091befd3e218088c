"""Tabs of the page, one module each: widgets and their callbacks."""
