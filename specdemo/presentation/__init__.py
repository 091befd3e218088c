"""Presentation of records as words, figures, charts, HTML, code and files, for page and terminal alike."""
