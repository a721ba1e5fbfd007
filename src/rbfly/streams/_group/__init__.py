"""Members of consumer groups."""
