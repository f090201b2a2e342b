"""Turns an archive of images into verified tar shards with an index and a manifest."""
