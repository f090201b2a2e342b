"""The format of prepared data on disk: tar shards, an index beside each, one manifest for all."""
