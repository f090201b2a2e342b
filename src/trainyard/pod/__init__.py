"""What a pod does around training: checks before it, the launcher, MPI, and its log."""
