"""`make gpu`: proves the CUDA path on one GPU within nine minutes."""
