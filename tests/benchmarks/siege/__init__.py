"""What the app withstands."""
