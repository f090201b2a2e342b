"""The sections of the settings; src/trainyard/config/settings.py puts them together."""
