"""The sections of the settings; trainers/config/settings.py puts them together."""
