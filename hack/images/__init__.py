"""What builds, runs and compares the images."""
