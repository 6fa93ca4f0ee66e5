"""``python -m cronstable``."""

import sys

from cronstable.cli import main

if __name__ == "__main__":
    sys.exit(main())
