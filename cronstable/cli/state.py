"""``cronstable state``: look at a durable state store, check it, collect, back up, restore and move it."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import anyio
import click

from cronstable.cli import state_archive as archive
from cronstable.cli import state_copy as copying
from cronstable.cli.loading import loader, plugins_with_warnings, print_findings, warn
from cronstable.cli.main import DEFAULT_CONFIG
from cronstable.cli.state_check import damage_of
from cronstable.cli.state_collect import collect, look
from cronstable.config.model import StateConfig
from cronstable.core.clock import Seconds
from cronstable.core.store import StoreUnavailable
from cronstable.plugin.descriptors import StateStoreBackend
from cronstable.plugin.manager import Provided, load_factory
from cronstable.plugin.state_store import StateStore, StoreInfo, Topology
from cronstable.runtime.bus import EventBus
from cronstable.runtime.files import SystemFiles
from cronstable.runtime.host import DaemonHost, Seams
from cronstable.runtime.http import HttpxClient
from cronstable.runtime.output import OutputHub
from cronstable.runtime.processes import HostProcesses
from cronstable.runtime.spawn import PosixSpawner
from cronstable.runtime.system import SystemClock, SystemIds, SystemRng
from cronstable.runtime.threads import ThreadLanes

if TYPE_CHECKING:
    from rich.progress import Progress

CLOSING: Final[Seconds] = 5.0


class Failed(click.ClickException):
    """It could not be done, or something is wrong: why on stderr, exit code 1."""

    exit_code = 1


Work: TypeAlias = Callable[[StateStore, StoreInfo, StateConfig], Awaitable[None]]

_config = click.option(
    "-c", "--config", metavar="PATH", default=DEFAULT_CONFIG, show_default=True, help="The configuration of the store."
)
_json = click.option("--json", "as_json", is_flag=True, help="One object instead of text.")


@click.group("state", invoke_without_command=True)
@click.pass_context
def state_command(context: click.Context) -> None:
    """Look at a durable state store, check it, collect, back up, restore and move it.

    Everything works on the store itself and needs no daemon. A daemon may run meanwhile: no command takes away what
    one wrote, and a backup or a move has what was acknowledged when it came by. Leases are neither backed up nor
    moved; stop the daemons before their next start is to find a moved store.

    Each ends with 0, with 1 when something is wrong or could not be done, and with 2 for wrong usage.
    """
    if context.invoked_subcommand is None:
        raise click.UsageError("name a command: info, check, gc, backup, restore or migrate")


@state_command.command("info")
@_config
@_json
def info_command(config: str, as_json: bool) -> None:
    """Say which store it is, where, who can reach it, and what is in it."""

    async def work(store: StateStore, info: StoreInfo, state: StateConfig) -> None:
        streams, documents = await store.streams(), await store.documents()
        kinds = Counter(name.partition("/")[0] for name in streams)
        if as_json:
            told = {"backend": info.backend, "topology": info.topology.value, "location": info.location}
            click.echo(json.dumps({**told, "streams": dict(sorted(kinds.items())), "documents": len(documents)}))
            return
        click.echo(f"{info.backend} at {info.location} ({_REACH[info.topology]})")
        for kind, count in sorted(kinds.items()):
            click.echo(f"  {kind:<12}{count:>8} streams")
        click.echo(f"  {'documents':<12}{len(documents):>8}")

    _with_store(config, work)


@state_command.command("check")
@_config
@_json
@click.option("--repair", is_flag=True, help="Put aside or put right what can be; nothing is thrown away.")
def check_command(config: str, as_json: bool, repair: bool) -> None:
    """Look for damage: torn records, versions this cronstable cannot read, foreign and half-written files, what cannot
    be read, and fences that went back.

    Ends with 1 when damage is left.
    """

    async def work(store: StateStore, info: StoreInfo, state: StateConfig) -> None:
        found = []
        with _progress("looking") as progress:
            task = progress.add_task("looking", total=None)
            async for damage in damage_of(store, repair=repair):
                found.append(damage)
                progress.advance(task)
        left = sum(not damage.repaired for damage in found)
        if as_json:
            rows = [{"what": d.what, "detail": d.detail, "repaired": d.repaired} for d in found]
            click.echo(json.dumps({"damage": rows, "left": left}))
        else:
            for damage in found:
                click.echo(f"{'repaired' if damage.repaired else 'DAMAGED'}  {damage.what}: {damage.detail}")
            hint = "" if repair or not left else "; --repair puts aside what can be"
            click.echo(f"{len(found)} found, {left} left{hint}" if found else "no damage")
        if left:
            raise click.exceptions.Exit(Failed.exit_code)

    _with_store(config, work)


@state_command.command("gc")
@_config
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def gc_command(config: str, dry_run: bool) -> None:
    """Drop the records of jobs that no node has known for gcGraceSeconds. The daemons do the same once a day."""

    async def work(store: StateStore, info: StoreInfo, state: StateConfig) -> None:
        if state.gc_grace is None:
            click.echo("gcGraceSeconds says that nothing is ever collected")
            return
        retention = await look(store, state.gc_grace, SystemClock().now().wall)
        if not retention.covered:
            days = state.gc_grace / 86_400
            click.echo(f"nothing may go yet: the nodes have not said which jobs they know for {days:g} days on end")
            return
        count = 0
        async for name in collect(store, retention, dry_run=dry_run):
            count += 1
            click.echo(f"{'would go' if dry_run else 'dropped'}  {name}")
        click.echo(f"{count} streams {'would go' if dry_run else 'dropped'}")

    _with_store(config, work)


@state_command.command("backup")
@_config
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Replace FILE when it is there.")
def backup_command(config: str, file: str, force: bool) -> None:
    """Write everything in the store to FILE: lines of JSON, read back before FILE gets its name.

    Interrupted, it goes on from FILE.partial when it is started again. The file holds what jobs wrote: keep it as you
    keep their logs.
    """
    if os.path.exists(file) and not force:
        raise Failed(f"{file} is there already; name another, or say --force")

    async def work(store: StateStore, info: StoreInfo, state: StateConfig) -> None:
        writer = archive.Writer(file)
        try:
            writer.open()
            keys = []
            with _progress("backing up") as progress:
                task = progress.add_task("backing up", total=await _size(store))
                async for item in copying.items(store):
                    keys.append(item.key)
                    writer.put(item)
                    progress.advance(task)
            writer.drop_others(keys)
            contents = writer.finish()
        finally:
            writer.close()
        kinds = Counter(kind for kind, _ in contents.digests)
        click.echo(f"{file}: {kinds['stream']} streams and {kinds['document']} documents, read back and found whole")

    _with_store(config, work)


@state_command.command("restore")
@_config
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--force", is_flag=True, help="Into a store that is not empty; what differs is replaced.")
def restore_command(config: str, file: str, force: bool) -> None:
    """Bring what is in FILE into an empty store, and check that it arrived.

    Interrupted, it goes on when it is started again. With --force streams and documents that differ are replaced by
    those of FILE; what FILE does not have stays.
    """

    async def work(store: StateStore, info: StoreInfo, state: StateConfig) -> None:
        with _archive_errors(file):
            items = list(archive.read(file))
        if not force:
            others = await copying.conflicts(items, store)
            if others:
                raise Failed(f"the store is not empty: {_some(others)}; --force replaces what differs")
        copied = copying.Copied()
        with _progress("restoring") as progress:
            task = progress.add_task("restoring", total=2 * len(items))
            await copying.copy_all(copying.each(items), store, copied, partial(progress.advance, task), replace=force)
            wrong = await copying.verify(copied, store, partial(progress.advance, task))
        _tell(copied, wrong)

    _with_store(config, work)


@state_command.command("migrate")
@_config
@click.option("--to", "target", metavar="PATH", required=True, help="The configuration of the store to move to.")
def migrate_command(config: str, target: str) -> None:
    """Copy everything from one store to another, of any kind, and check that it arrived. The source keeps what it has.

    Interrupted, it goes on when it is started again: what is there already is not written twice. What stands in the
    target with other contents is left alone, and named.
    """

    async def work(source: StateStore, info: StoreInfo, state: StateConfig) -> None:
        async with Opened(wanted_of(target)) as (store, where):
            if (where.backend, where.location) == (info.backend, info.location):
                raise Failed(f"both configurations name the store at {info.location}")
            copied = copying.Copied()
            with _progress("moving") as progress:
                task = progress.add_task("moving", total=2 * await _size(source))
                found = copying.items(source)
                await copying.copy_all(found, store, copied, partial(progress.advance, task), replace=False)
                wrong = await copying.verify(copied, store, partial(progress.advance, task))
            _tell(copied, wrong)

    _with_store(config, work)


# -- around the commands ----------------------------------------------------------------------------------------------

_REACH: Final = {
    Topology.PROCESS: "of one process",
    Topology.SINGLE_NODE: "of this machine",
    Topology.SHARED: "shared by all nodes",
}


def _tell(copied: copying.Copied, wrong: list[str]) -> None:
    click.echo(f"{copied.written} records written, {copied.there} were there")
    if copied.conflicts:
        raise Failed(f"left alone, since other contents stand there: {_some(copied.conflicts)}")
    if wrong:
        raise Failed(f"not as it was written: {_some(wrong)}")
    click.echo("read back and found whole")


def _some(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


async def _size(store: StateStore) -> int:
    return len(await store.streams()) + len(await store.documents())


@dataclass(frozen=True, slots=True)
class Wanted:
    """The ``state`` section of a configuration, and whose store it names."""

    state: StateConfig
    provided: Provided[StateStoreBackend]


def wanted_of(path: str) -> Wanted:
    """Read a configuration, which must be without mistakes. Raises ``Failed``."""
    plugins = plugins_with_warnings(warn)
    result = loader(path, plugins)()
    if result.config is None:
        print_findings(result, "text")
        raise Failed(f"{path} cannot be used")
    state = result.config.state
    if state is None:
        raise Failed(f"{path} has no state section (hint: state: {{path: /var/lib/cronstable}})")
    if state.backend.name == "memory":
        raise Failed(f"{path}: the store `memory` is gone with its daemon; there is nothing to work on")
    return Wanted(state, plugins.state_stores[state.backend.name])


class Opened:
    """A store for the time of a command."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._store: StateStore | None = None

    async def __aenter__(self) -> tuple[StateStore, StoreInfo]:
        provided = self._wanted.provided
        factory = load_factory(provided.descriptor.factory, provided)
        store = self._store = cast(StateStore, factory(self._wanted.state.settings, _host()))
        return store, await store.open()

    async def __aexit__(self, *error: object) -> None:
        if self._store is not None:
            with anyio.move_on_after(CLOSING, shield=True):
                await self._store.aclose()


def _host() -> DaemonHost:
    log = logging.getLogger("cronstable")
    clock = SystemClock()
    seams = Seams(
        clock=clock,
        rng=SystemRng(),
        ids=SystemIds(),
        fs=SystemFiles(),
        http=HttpxClient(),
        threads=ThreadLanes(),
        processes=HostProcesses(PosixSpawner(), clock, os.environ),
    )
    return DaemonHost(seams=seams, log=log, bus=EventBus(log), hub=OutputHub())


def _with_store(path: str, work: Work) -> None:
    """Open the store of a configuration and do ``work`` on it; what goes wrong becomes a line and exit code 1."""
    wanted = wanted_of(path)

    async def main() -> None:
        async with Opened(wanted) as (store, info):
            await work(store, info, wanted.state)

    try:
        anyio.run(main)
    except StoreUnavailable as error:
        raise Failed(f"the store cannot be used: {error}") from None
    except (archive.BadArchive, OSError) as error:
        raise Failed(str(error)) from None


@contextmanager
def _archive_errors(file: str) -> Iterator[None]:
    try:
        yield
    except archive.BadArchive as error:
        raise Failed(f"{file}: {error}") from None


@contextmanager
def _progress(title: str) -> Iterator[Progress]:
    """A bar on stderr, where somebody looks at it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        yield progress
