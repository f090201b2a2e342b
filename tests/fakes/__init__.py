"""Servers on loopback that behave, and misbehave, as the real ones do."""
