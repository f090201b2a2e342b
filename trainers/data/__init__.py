"""What the trainers read: prepared shards, their order, transforms and batches."""
