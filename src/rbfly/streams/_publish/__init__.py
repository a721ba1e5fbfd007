"""Publishers of a stream."""
