"""``cronstable simulate``: a configuration's own jobs on N simulated nodes, with faults, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TextIO

import click

from cronstable.cli.main import DEFAULT_CONFIG, FAILED, OK, USAGE

if TYPE_CHECKING:
    from cronstable.config import ClusterConfig, Config
    from cronstable.testing.sim import Counts, Kind, Result, Setup

KINDS: Final = ("kill", "pause", "partition", "clock", "store")
BACKENDS: Final = ("filesystem", "etcd", "kubernetes", "none")
NONE: Final = "none"
EACH: Final = "each"
"""All backends with a lease take turns."""
START: Final = "2026-01-01T00:00:00Z"
LONG_SPAN: Final = 2.5
"""From one calm to the next there is time for so many spells of faults, and an hour at least."""
SHOWN: Final = 10
"""Violations that are shown one by one."""
FINE: Final = 1800.0
"""Seconds. A simulation that is no longer than this looks as often as a daemon does; a longer one less often."""


@click.command("simulate")
@click.option("-c", "--config", "path", metavar="PATH", default=DEFAULT_CONFIG, help="File or directory.")
@click.option("--nodes", type=click.IntRange(1, 100), default=3, show_default=True, help="How many daemons.")
@click.option("--hours", type=click.FloatRange(0.01, 8784), default=24.0, show_default=True, help="For how long.")
@click.option("--years", type=click.FloatRange(0.0001, 1000), help="Instead of hours: months, in two processes.")
@click.option("--seed", default="0", show_default=True, help="Any text; the same one gives the same run.")
@click.option("--faults", default="", metavar="LIST", help=f"Of {','.join(KINDS)}, or all; default: none.")
@click.option("--fault-every", type=click.FloatRange(1), default=300.0, show_default=True, help="Seconds, on average.")
@click.option(
    "--fault-spell", type=click.IntRange(1, 20), default=1, show_default=True, help="At most, close together."
)
@click.option("--backend", type=click.Choice((*BACKENDS, EACH)), help="Instead of the one that is configured.")
@click.option("--from", "start", metavar="T", default=START, show_default=True, help="Begin then.")
@click.option("--run-seconds", type=click.FloatRange(0), default=2.0, show_default=True, help="Of a run, on average.")
@click.option("--failing", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Part of runs that fail.")
@click.option("--log", "log", type=click.File("w", lazy=False), metavar="FILE", help="Write every event, one a line.")
@click.option("--shrink", is_flag=True, help="After a violation: find the fewest faults that it takes.")
@click.option("--json", "as_json", is_flag=True, help="One object instead of text.")
def simulate_command(
    path: str,
    nodes: int,
    hours: float,
    years: float | None,
    seed: str,
    faults: str,
    fault_every: float,
    fault_spell: int,
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
    if backend == EACH and years is None:
        raise click.UsageError(f"--backend {EACH} is for --years: the backends take turns from month to month")
    seconds = (hours if years is None else years * 8760) * 3600
    setup = _setup(
        config,
        BACKENDS[0] if backend == EACH else backend,
        _kinds(faults),
        start,
        nodes,
        seconds,
        seed,
        fault_every,
        run_seconds,
        failing,
    )
    setup = replace(setup, spell=fault_spell, span=max(3600.0, LONG_SPAN * fault_every))
    if years is not None:
        if log is not None or shrink:
            raise click.UsageError("--years keeps no log and shrinks nothing: simulate the month that is named again")
        backends = [name for name in BACKENDS if name != NONE] if backend == EACH else [setup.backend]
        return _years(setup, years, backends, path, as_json=as_json)
    result = simulate(setup)
    if log is not None:
        log.writelines(f"{line}\n" for line in result.log)
    least = fewest(result) if shrink and result.violations else None
    if as_json:
        click.echo(json.dumps(_data(result, least), indent=2))
    else:
        _print(result, least, path)
    return FAILED if result.violations else OK


def _years(setup: Setup, years: float, backends: Sequence[str], path: str, *, as_json: bool) -> int:
    from cronstable.testing.sim import years as simulated

    setups = simulated.months(setup, years, backends)
    done = []
    for month in simulated.run(setups, processes=2):
        done.append(month)
        click.echo(f"{len(done)} of {len(setups)} months", err=True)
        if month.violations and not as_json:
            click.echo(f"{month.violations[0]}\n  again: {_again(month.setup, path)}")
    counts, faults = simulated.total(done)
    broken = sum(len(month.violations) for month in done)
    facts = {
        "years": years,
        "nodes": setup.nodes,
        "backends": backends,
        "seed": setup.seed,
        "faults": faults,
        "violations": broken,
        "events": sum(month.events for month in done),
        **_numbers(counts),
    }
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo(f"{years:g} cluster-years of {setup.nodes} nodes, {' and '.join(backends)}, {faults} faults")
        _print_table(_rows(counts))
        click.echo("every invariant held" if not broken else f"invariants did not hold {broken} times")
    return FAILED if broken else OK


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
        renew_deadline=_own(section, chosen, "renewDeadlineSeconds") if chosen == "kubernetes" else None,
        retry_period=_own(section, chosen, "retryPeriodSeconds") if chosen == "kubernetes" else None,
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
    value = _own(section, backend, "leaseDurationSeconds" if backend == "kubernetes" else "ttl")
    return value if value is not None and value >= 3 else 15.0


def _own(section: Mapping[str, object], backend: str, key: str) -> float | None:
    """A number of the backend's own section."""
    own = section.get(backend)
    value = own.get(key) if isinstance(own, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


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
        **_numbers(counts),
        "violations": [{"invariant": v.invariant, "at": round(v.at, 3), "text": v.text} for v in result.violations],
        "shrunk": None if least is None else [str(fault) for fault in least.plan],
        "digest": result.digest,
    }


def _numbers(counts: Counts) -> dict[str, object]:
    return {
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
    }


def _print(result: Result, least: Result | None, path: str) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    setup = result.setup
    election = "no election: every node starts every job" if setup.backend == NONE else f"backend {setup.backend}"
    console.print(
        f"{setup.nodes} nodes, {setup.seconds / 3600:g} h, {election}, {len(result.plan)} faults", style="bold"
    )
    rows = _rows(result.counts)
    _print_table(rows if setup.backend != NONE else [row for row in rows if row[0] in ("starts", "  retries")])
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


def _print_table(rows: Sequence[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for label, value in rows:
        table.add_row(Text(label), Text(value, justify="right"))
    Console(highlight=False, soft_wrap=True).print(table)


def _rows(counts: Counts) -> Sequence[tuple[str, str]]:
    return [
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


def _again(setup: Setup, path: str) -> str:
    """The command line that gives the same run."""
    parts = ["cronstable simulate", f"-c {path}", f"--nodes {setup.nodes}", f"--hours {setup.seconds / 3600:g}"]
    parts += [f"--seed {setup.seed}", f"--backend {setup.backend}"]
    if setup.kinds:
        parts += [f"--faults {','.join(setup.kinds)}", f"--fault-every {setup.every:g}"]
    others = (
        ("--fault-spell", setup.spell, 1),
        ("--run-seconds", setup.run_seconds, 2.0),
        ("--failing", setup.failing, 0.0),
        ("--from", _instant_text(setup.start), START),
    )
    parts += [f"{name} {value}" for name, value, usual in others if value != usual]
    return " ".join(parts)


def _instant_text(start: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(start, UTC).isoformat().replace("+00:00", "Z")
