"""The public contract kit: virtual clock, fault injection, and the suites a backend must pass."""
