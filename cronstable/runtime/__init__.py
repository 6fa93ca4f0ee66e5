"""The daemon: one task tree around the pure core, and the seams to the outside world."""
