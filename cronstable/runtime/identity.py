"""Which user and groups a job runs as: names to numbers."""

from __future__ import annotations

import grp
import os
import pwd

from cronstable.core.values import dataclass


class IdentityError(Exception):
    """The job cannot run as the user or group it names; the message says why."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Numbers to switch to, in the order groups, gid, uid. ``uid`` None: the user stays.

    ``variables``: HOME, USER and LOGNAME of the user, as cron sets them; empty when only the group changes.
    """

    uid: int | None
    gid: int
    groups: tuple[int, ...]
    variables: tuple[tuple[str, str], ...] = ()


def resolve_identity(user: str | int | None, group: str | int | None, *, effective_uid: int) -> Identity:
    """Look ``user`` and ``group`` up. Blocking: account databases may be on the network.

    Raises ``IdentityError`` when the daemon is not root or a name is unknown: a job never runs as somebody else.
    """
    if effective_uid != 0:
        raise IdentityError(
            f"user/group: only root may switch, and the daemon runs as uid {effective_uid}; "
            "run the daemon as root, or remove the keys from the job"
        )
    try:
        gid = None if group is None else _gid(group)
        if user is None:
            if gid is None:
                raise IdentityError("neither user nor group is given")
            return Identity(None, gid, (gid,))
        return _of_user(user, gid)
    except OSError as error:
        raise IdentityError(f"user/group: the account database cannot be read: {error.strerror or error}") from error


def _of_user(user: str | int, gid: int | None) -> Identity:
    entry = _entry(user)
    if entry is None:
        if not isinstance(user, int):
            raise IdentityError(f"user: there is no user {user!r} on this host")
        if gid is None:
            raise IdentityError(f"user: uid {user} has no account on this host, so group is needed as well")
        return Identity(user, gid, (gid,))
    primary = entry.pw_gid if gid is None else gid
    variables = (("HOME", entry.pw_dir), ("LOGNAME", entry.pw_name), ("USER", entry.pw_name))
    return Identity(entry.pw_uid, primary, tuple(os.getgrouplist(entry.pw_name, primary)), variables)


def _entry(user: str | int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
    except (KeyError, OverflowError):
        return None


def _gid(group: str | int) -> int:
    if isinstance(group, int):
        return group
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise IdentityError(f"group: there is no group {group!r} on this host") from None
