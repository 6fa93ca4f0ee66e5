"""cronstable: a cron daemon whose replicas agree on who runs each occurrence."""

__version__ = "2.0.0"
