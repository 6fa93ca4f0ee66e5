"""From a job to what is spawned: user, environment, directory, arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from cronstable.config.envfile import parse_env_file
from cronstable.config.reading import LONGEST_ENV_FILE, read_up_to
from cronstable.core.clock import Seconds
from cronstable.core.job import Job
from cronstable.plugin.protocols import Threads
from cronstable.runtime.identity import Identity, IdentityError, resolve_identity
from cronstable.runtime.spawn import SpawnFailed, SpawnSpec

T = TypeVar("T")

LOOKUP_TIMEOUT: Seconds = 10.0
"""For each look at a disk or an account database before the spawn; any of them may hang."""


async def prepare(job: Job, variables: Mapping[str, str], *, environ: Mapping[str, str], threads: Threads) -> SpawnSpec:
    """Look up and read what ``job`` needs to start now.

    ``variables``: the ``CRONSTABLE_*`` of the run, above all else; ``environ``: the daemon's environment, below it.
    Raises ``SpawnFailed`` when the user, the ``env_file`` or the directory cannot be had.
    """
    options = job.options
    identity = None
    if options.user is not None or options.group is not None:
        identity = await _identity(options.user, options.group, threads)
    # Lowest layer first: the daemon's, the user's home, ``env_file``, ``environment``, the run's own variables.
    env = dict(environ)
    if identity is not None:
        env.update(identity.variables)
    if options.env_file is not None:
        env.update(await _env_file(options.env_file, threads))
    env.update(options.environment)
    env.update(variables)
    if options.working_directory is not None and identity is None:
        # Else the exec helper enters it as the job's user, who may see other directories than root does.
        await _check_directory(options.working_directory, threads)
    command = job.command
    return SpawnSpec(
        argv=(options.shell or "/bin/sh", "-c", command) if isinstance(command, str) else command,
        env=env,
        cwd=options.working_directory,
        capture_stdout=options.capture_stdout,
        capture_stderr=options.capture_stderr,
        identity=identity,
    )


async def _identity(user: str | int | None, group: str | int | None, threads: Threads) -> Identity:
    try:
        return await _look_up(
            threads, lambda: resolve_identity(user, group, effective_uid=os.geteuid()), "the account database"
        )
    except IdentityError as error:
        raise SpawnFailed(str(error)) from error


async def _env_file(path: str, threads: Threads) -> Mapping[str, str]:
    """Read anew for each run, so that a changed file holds from the next run on without a reload."""

    def read() -> str:
        return read_up_to(path, LONGEST_ENV_FILE).decode("utf-8-sig")

    try:
        return parse_env_file(await _look_up(threads, read, f"env_file {path!r}"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpawnFailed(f"env_file {path!r} cannot be used: {reason}") from error


async def _check_directory(path: str, threads: Threads) -> None:
    try:
        # The chdir before the exec would stop the whole daemon on a mount that hangs; this one stops a thread.
        await _look_up(threads, lambda: os.stat(path), f"the working directory {path!r}")
    except OSError as error:
        raise SpawnFailed(f"cannot enter the working directory {path!r}: {error.strerror or error}") from error


async def _look_up(threads: Threads, call: Callable[[], T], what: str) -> T:
    try:
        return await threads.run(call, timeout=LOOKUP_TIMEOUT, lane="spawn")
    except TimeoutError:
        raise SpawnFailed(f"{what} did not answer within {LOOKUP_TIMEOUT:g} s") from None
