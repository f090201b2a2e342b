"""Turns a manifest of another's training job into values of the chart, and accounts for every field of it."""
