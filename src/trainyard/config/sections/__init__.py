"""The sections of the settings; trainyard/config/settings.py puts them together."""
