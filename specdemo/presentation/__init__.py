"""Records in words, tables, figures, code and files: what the page and the terminal share."""
