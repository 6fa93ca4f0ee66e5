"""Becomes another user, then the job's command: ``python -I -S exec_helper.py PLAN STATUS``, a script of its own.

``subprocess`` gives up vfork when it has to switch users, and a fork of a large daemon is slow; this script costs a
start of the interpreter (some 10 ms), and only for jobs with ``user`` or ``group``. PLAN is a descriptor with JSON: the
job's environment comes through it and is not this process's own, because a variable such as LD_PRELOAD out of a
file that the user owns would otherwise be obeyed by root. STATUS is a descriptor for the answer: ``ok`` before the
exec, which closes it, and then, or instead, what went wrong. Imports nothing of cronstable.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TypedDict

LAUNCH_FAILED = 127


class Plan(TypedDict):
    """What to become and to execute; ``uid`` None: the user stays, ``cwd`` None: the directory stays."""

    argv: list[str]
    env: dict[str, str]
    cwd: str | None
    uid: int | None
    gid: int
    groups: list[int]


def switch(plan: Plan, step: list[str]) -> None:
    """Groups, gid, uid, directory: in this order, because each step takes the right to do an earlier one."""
    step[0] = "set the groups of the job's user"
    os.setgroups(plan["groups"])
    step[0] = f"switch to gid {plan['gid']}"
    os.setgid(plan["gid"])
    if plan["uid"] is not None:
        step[0] = f"switch to uid {plan['uid']}"
        os.setuid(plan["uid"])
    if plan["cwd"] is not None:
        step[0] = f"enter the working directory {plan['cwd']!r} as the job's user"
        os.chdir(plan["cwd"])


def execute(argv: list[str], env: dict[str, str], directories: list[str]) -> None:
    """Exec the first ``argv[0]`` of the search path that can be; raises what the most telling attempt raised."""
    telling: OSError | None = None
    for candidate in [argv[0]] if "/" in argv[0] else [f"{directory}/{argv[0]}" for directory in directories]:
        try:
            os.execve(candidate, argv, env)
        except (FileNotFoundError, NotADirectoryError) as error:
            telling = telling or error
        except PermissionError as error:
            # Found and forbidden says more than not found, and a later directory may still have another.
            telling = error
    raise telling or FileNotFoundError(2, "No such file or directory")


def main(plan_fd: int, status_fd: int) -> None:
    """Switch and exec; comes back only when something failed."""
    os.set_inheritable(status_fd, False)
    with os.fdopen(plan_fd, "rb") as file:
        file.seek(0)
        plan: Plan = json.load(file)
    # Before the switch: the standard library imports on demand, and the job's user may not be able to read it.
    directories = os.get_exec_path(plan["env"])
    step = [""]
    try:
        switch(plan, step)
        step[0] = f"execute {plan['argv'][0]!r}"
        os.write(status_fd, b"ok")
        execute(plan["argv"], plan["env"], directories)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not look like the exit code of the job
        reason = getattr(error, "strerror", None) or str(error)
        os.write(status_fd, f"cannot {step[0]}: {reason}".encode("utf-8", "replace")[:4000])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    os._exit(LAUNCH_FAILED)
