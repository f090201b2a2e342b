"""From shards to batches: order, decoding, augmentation, loading."""
