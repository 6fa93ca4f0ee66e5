"""``cronstable simulate``: a configuration's own jobs on N simulated nodes, with faults, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, TextIO

import click

from cronstable.cli.main import DEFAULT_CONFIG, FAILED, OK, USAGE

if TYPE_CHECKING:
    from cronstable.config import ClusterConfig, Config
    from cronstable.testing.sim import Kind, Result, Setup

KINDS: Final = ("kill", "pause", "partition", "clock", "store")
BACKENDS: Final = ("filesystem", "etcd", "kubernetes", "none")
NONE: Final = "none"
SHOWN: Final = 10
"""Violations that are shown one by one."""
FINE: Final = 1800.0
"""Seconds. A simulation that is no longer than this looks as often as a daemon does; a longer one less often."""


@click.command("simulate")
@click.option("-c", "--config", "path", metavar="PATH", default=DEFAULT_CONFIG, help="File or directory.")
@click.option("--nodes", type=click.IntRange(1, 100), default=3, show_default=True, help="How many daemons.")
@click.option("--hours", type=click.FloatRange(0.01, 8784), default=24.0, show_default=True, help="For how long.")
@click.option("--seed", default="0", show_default=True, help="Any text; the same one gives the same run.")
@click.option("--faults", default="", metavar="LIST", help=f"Of {','.join(KINDS)}, or all; default: none.")
@click.option("--fault-every", type=click.FloatRange(1), default=300.0, show_default=True, help="Seconds, on average.")
@click.option("--backend", type=click.Choice(BACKENDS), help="Instead of the one that is configured.")
@click.option("--from", "start", metavar="T", default="2026-01-01T00:00:00Z", show_default=True, help="Begin then.")
@click.option("--run-seconds", type=click.FloatRange(0), default=2.0, show_default=True, help="Of a run, on average.")
@click.option("--failing", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Part of runs that fail.")
@click.option("--log", "log", type=click.File("w", lazy=False), metavar="FILE", help="Write every event, one a line.")
@click.option("--shrink", is_flag=True, help="After a violation: find the fewest faults that it takes.")
@click.option("--json", "as_json", is_flag=True, help="One object instead of text.")
def simulate_command(
    path: str,
    nodes: int,
    hours: float,
    seed: str,
    faults: str,
    fault_every: float,
    backend: str | None,
    start: str,
    run_seconds: float,
    failing: float,
    log: TextIO | None,
    shrink: bool,
    as_json: bool,
) -> int:
    """Run the jobs of a configuration on simulated nodes, and check what must hold.

    The state machines are the daemon's own; the nodes, the store, the network and the time are simulated. Nothing is
    started and nothing is written but the log. Ends with 0 when every invariant held, 1 when one did not, 2 for a
    configuration or an option that cannot be simulated.
    """
    from cronstable.testing.sim import shrink as fewest
    from cronstable.testing.sim import simulate

    config = _config(path)
    if config is None:
        return USAGE
    setup = _setup(config, backend, _kinds(faults), start, nodes, hours * 3600, seed, fault_every, run_seconds, failing)
    result = simulate(setup)
    if log is not None:
        log.writelines(f"{line}\n" for line in result.log)
    least = fewest(result) if shrink and result.violations else None
    if as_json:
        click.echo(json.dumps(_data(result, least), indent=2))
    else:
        _print(result, least, path)
    return FAILED if result.violations else OK


def _config(path: str) -> Config | None:
    from cronstable.cli.loading import loader, plugins_with_warnings, print_findings, warn

    result = loader(path, plugins_with_warnings(warn))()
    if result.config is None:
        print_findings(result, "text")
    return result.config


def _kinds(text: str) -> tuple[Kind, ...]:
    from cronstable.testing.sim import Kind

    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return tuple(Kind)
    for name in names:
        if name not in KINDS:
            raise click.UsageError(f"--faults: there is no {name!r}; of {', '.join(KINDS)}, or all")
    return tuple(Kind(name) for name in dict.fromkeys(names))


def _setup(
    config: Config,
    backend: str | None,
    kinds: tuple[Kind, ...],
    start: str,
    nodes: int,
    seconds: float,
    seed: str,
    fault_every: float,
    run_seconds: float,
    failing: float,
) -> Setup:
    from cronstable.cli.schedule_tools import instant
    from cronstable.core.sweep import Mode
    from cronstable.testing.sim import Setup

    chosen = backend or _configured(config.cluster)
    section: Mapping[str, object] = config.cluster.section if config.cluster is not None else {}
    catch_up = section.get("catchUp")
    given: Mapping[str, object] = catch_up if isinstance(catch_up, Mapping) else {}
    limit, window = given.get("limit"), given.get("window")
    return Setup(
        jobs=config.jobs,
        backend=chosen,
        nodes=nodes,
        seconds=seconds,
        seed=seed,
        kinds=kinds,
        ttl=_ttl(section, chosen),
        connect_timeout=config.cluster.connect_timeout if config.cluster is not None else 10.0,
        window=float(window) if isinstance(window, int | float) else None,
        mode=Mode(str(given.get("mode", "all"))),
        limit=limit if isinstance(limit, int) else 100,
        every=fault_every,
        run_seconds=run_seconds,
        failing=failing,
        coarse=seconds > FINE,
        start=float(instant(start)),
    )


def _configured(cluster: ClusterConfig | None) -> str:
    if cluster is None or not cluster.elect_leader:
        return NONE
    if cluster.backend.name in BACKENDS:
        return cluster.backend.name
    raise click.UsageError(
        f"cluster.backend {cluster.backend.name} cannot be simulated: it elects without a lease. "
        f"See what another one would do: --backend {'|'.join(BACKENDS)}"
    )


def _ttl(section: Mapping[str, object], backend: str) -> float:
    """The ttl that the backend's own section asks for."""
    own = section.get(backend)
    key = "leaseDurationSeconds" if backend == "kubernetes" else "ttl"
    value = own.get(key) if isinstance(own, Mapping) else None
    return float(value) if isinstance(value, int | float) and value >= 3 else 15.0


# -- the report -------------------------------------------------------------------------------------------------------


def _data(result: Result, least: Result | None) -> dict[str, object]:
    """The object of ``--json``. Scripts read this: keys may be added, never renamed or removed."""
    counts, setup = result.counts, result.setup
    return {
        "backend": setup.backend,
        "nodes": setup.nodes,
        "seconds": setup.seconds,
        "seed": setup.seed,
        "faults": len(result.plan),
        "due": counts.due,
        "starts": counts.starts,
        "late": counts.late,
        "retries": counts.retries,
        "duplicates": counts.duplicates,
        "misses": counts.misses,
        "skips": dict(sorted(counts.skips.items())),
        "terms": counts.terms,
        "worstTakeoverSeconds": round(counts.worst_takeover, 3),
        "worstLatenessSeconds": round(counts.worst_lateness, 3),
        "violations": [{"invariant": v.invariant, "at": round(v.at, 3), "text": v.text} for v in result.violations],
        "shrunk": None if least is None else [str(fault) for fault in least.plan],
        "digest": result.digest,
    }


def _print(result: Result, least: Result | None, path: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    setup = result.setup
    election = "no election: every node starts every job" if setup.backend == NONE else f"backend {setup.backend}"
    console.print(
        f"{setup.nodes} nodes, {setup.seconds / 3600:g} h, {election}, {len(result.plan)} faults", style="bold"
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    for label, value in _rows(result):
        table.add_row(Text(label), Text(value, justify="right"))
    console.print(table)
    for violation in result.violations[:SHOWN]:
        console.print(Text(str(violation), style="red"))
    if len(result.violations) > SHOWN:
        console.print(f"and {len(result.violations) - SHOWN} more")
    if least is not None:
        console.print("the fewest faults that it takes:", style="bold")
        for line in [*map(str, least.plan), *map(str, least.violations[:1])]:
            console.print(Text(f"  {line}"))
    verdict = "every invariant held" if not result.violations else "an invariant did not hold"
    console.print(Text(verdict, style="green" if not result.violations else "bold red"))
    console.print(Text(f"events {result.digest[:16]}; again: {_again(setup, path)}"))


def _rows(result: Result) -> Sequence[tuple[str, str]]:
    counts = result.counts
    rows = [
        ("due", str(counts.due)),
        ("starts", str(counts.starts)),
        ("  late", str(counts.late)),
        ("  retries", str(counts.retries)),
        ("duplicates", str(counts.duplicates)),
        ("misses", str(counts.misses)),
        *((f"skipped {reason}", str(number)) for reason, number in sorted(counts.skips.items())),
        ("terms", str(counts.terms)),
        ("worst takeover", f"{counts.worst_takeover:.1f} s"),
        ("latest start", f"{counts.worst_lateness:.1f} s"),
    ]
    return rows if result.setup.backend != NONE else [row for row in rows if row[0] in ("starts", "  retries")]


def _again(setup: Setup, path: str) -> str:
    """The command line that gives the same run."""
    parts = ["cronstable simulate", f"-c {path}", f"--nodes {setup.nodes}", f"--hours {setup.seconds / 3600:g}"]
    parts += [f"--seed {setup.seed}", f"--backend {setup.backend}"]
    if setup.kinds:
        parts += [f"--faults {','.join(setup.kinds)}", f"--fault-every {setup.every:g}"]
    return " ".join(parts)
