"""The command line; each command imports what it needs when it runs."""


def main() -> int:
    """Placeholder."""
    return 0
