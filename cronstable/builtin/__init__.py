"""The host's own plugins; they use cronstable.api and cronstable.leadership like any other."""
