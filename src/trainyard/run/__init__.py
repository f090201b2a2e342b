"""The files of a run: its directory, lease, checkpoints, records and published weights."""
