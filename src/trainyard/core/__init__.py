"""The basis of all packages: exit codes, files, names of the user's code, Python's garbage collection."""
