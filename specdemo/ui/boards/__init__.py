"""Boards: places on a tab that are filled from records with figures, tables and charts."""
