"""Records in words, figures, charts, HTML, code and files: what the page and the terminal share."""
