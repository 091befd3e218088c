"""Pieces of HTML and charts. Everything a model or a user wrote is escaped here."""
