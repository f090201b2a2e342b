"""A pod's work around training: checks before it, the launcher, MPI, and its log."""
