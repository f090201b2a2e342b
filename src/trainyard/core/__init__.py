"""What every package uses: exit codes, files, names of the user's code, Python's garbage collection."""
