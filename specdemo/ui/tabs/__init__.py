"""The tabs of the page, a module each: widgets and what they call."""
