"""What a run keeps on disk: its directory, lease, checkpoints, records and published weights."""
