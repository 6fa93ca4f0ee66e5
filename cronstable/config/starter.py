"""What ``cronstable init`` writes."""

from __future__ import annotations

import os
from typing import Final

FILE_NAME: Final = "cronstable.yaml"

_STARTER: Final = """\
# cronstable configuration. Check it with: cronstable -v -c THIS_FILE
# Times are UTC unless a job or the defaults say otherwise.

defaults:
  # timezone: Europe/Berlin
  captureStderr: true

jobs:
  - name: hello
    command: echo "hello, it is $(date -u +%H:%M) UTC"
    schedule: "*/5 * * * *"     # minute hour day-of-month month day-of-week
    captureStdout: true

  # A job that must not overlap itself and is ended after an hour:
  # - name: nightly-backup
  #   command: ["/usr/local/bin/backup", "--all"]
  #   schedule: "H 2 * * *"     # H: a minute of its own, derived from the name
  #   concurrencyPolicy: Forbid
  #   executionTimeout: 3600
  #   environment:
  #     - key: TARGET
  #       value: ${BACKUP_TARGET:-/var/backups}

# Several replicas that elect one leader through a shared directory
# (needs a plugin; with these lines "cronstable -v" says which one and how to install it):
# cluster:
#   backend: filesystem
#   filesystem:
#     path: /mnt/shared/cronstable

# The HTTP API and dashboard:
# web:
#   listen:
#     - http://127.0.0.1:8080
"""


def write_starter(directory: str) -> str:
    """Write a commented starter into ``directory``, which is made if needed. Returns the path of the file.

    Raises ``FileExistsError`` rather than overwrite anything, and any other ``OSError``.
    """
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, FILE_NAME)
    with open(path, "x", encoding="utf-8") as file:
        file.write(_STARTER)
    return path
