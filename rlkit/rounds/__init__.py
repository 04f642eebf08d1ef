"""The recorded states, as data and as text."""
