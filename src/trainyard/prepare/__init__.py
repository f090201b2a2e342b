"""Turns an archive of pictures into verified tar shards with an index and a manifest."""
