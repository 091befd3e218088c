"""Model pairs: where they are, whether they are whole, whether they fit each other and this machine."""
