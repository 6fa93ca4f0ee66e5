"""``cronstable certs``: a throw-away CA and a certificate for each node, for trying out and never for production.

The work is done by the ``openssl`` program, so that the plugin carries no cryptography of its own.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

DAYS: Final = 30
TIMEOUT: Final = 60.0
CURVE: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_CA_CONFIG: Final = (
    "[req]\ndistinguished_name=dn\nx509_extensions=ext\nprompt=no\n[dn]\nCN=cronstable try-out CA, not for production\n"
    "[ext]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n"
)


@click.command("certs")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("nodes", nargs=-1, required=True)
@click.option("--days", type=click.IntRange(1, 365), default=DAYS, show_default=True, help="How long they last.")
def certs(directory: Path, nodes: tuple[str, ...], days: int) -> None:
    """Make a CA and certificates for NODES in DIRECTORY, to try out a gossip cluster.

    A node is NAME or NAME=HOST,HOST: the names or addresses under which peers reach it; localhost and 127.0.0.1
    always work. The CA's key stays in DIRECTORY, and so do all keys, readable by you alone: do not use any of this in
    production. A CA that is there already is used again; no file is overwritten.
    """
    program = shutil.which("openssl")
    if program is None:
        raise click.ClickException("the program openssl is not installed; it makes the keys")
    wanted = [_node(text) for text in nodes]
    os.umask(0o077)
    try:
        _make(program, directory, wanted, days)
    except OSError as error:
        # An ordinary mistake: no permission, a file where a directory is named, a full disk.
        path, why = error.filename or directory, error.strerror or str(error)
        raise click.ClickException(f"{path}: {why}; name a directory that you can write to, or can make") from error
    click.echo(f"{len(wanted)} certificates for {days} days in {directory}, for trying out only. For each node:\n")
    for name, _ in wanted:
        where = directory.absolute()
        click.echo(f"  tls: {{ca: {where}/ca.pem, cert: {where}/{name}.pem, key: {where}/{name}.key}}")


def _make(program: str, directory: Path, wanted: Sequence[tuple[str, tuple[str, ...]]], days: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    files = [directory / f"{name}.{end}" for name, _ in wanted for end in ("pem", "key")]
    taken = [path.name for path in files if path.exists()]
    if taken:
        raise click.ClickException(f"{directory} has {', '.join(taken)} already; remove what shall be made anew")
    if not (directory / "ca.pem").exists():
        (directory / "ca.cnf").write_text(_CA_CONFIG, encoding="utf-8")
        out = ("-config", "ca.cnf", "-keyout", "ca.key", "-out", "ca.pem")
        _run(program, ["req", "-x509", *CURVE, "-days", str(days), *out], directory)
        (directory / "ca.cnf").unlink()
    for name, hosts in wanted:
        _issue(program, directory, name, hosts, days)


def _node(text: str) -> tuple[str, tuple[str, ...]]:
    name, _, more = text.partition("=")
    hosts = (name, "localhost", "127.0.0.1", *(host for host in more.split(",") if host))
    for part in hosts:
        if not part or not part.isascii() or any(not (c.isalnum() or c in ".-:_") for c in part) or part[0] in ".-":
            raise click.ClickException(f"`{text}` is not NAME or NAME=HOST,HOST")
    if name in ("ca", ""):
        raise click.ClickException(f"a node cannot be called `{name}` here")
    return name, tuple(dict.fromkeys(hosts))


def _issue(program: str, directory: Path, name: str, hosts: Sequence[str], days: int) -> None:
    extensions = directory / f"{name}.ext"
    extensions.write_text(
        f"basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n"
        f"extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName={','.join(map(_alternative, hosts))}\n",
        encoding="utf-8",
    )
    request = f"{name}.csr"
    subject = ("-subj", f"/CN={name}")
    _run(program, ["req", *CURVE, *subject, "-keyout", f"{name}.key", "-out", request], directory)
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", str(days), "-extfile", extensions.name)
    _run(program, ["x509", "-req", "-in", request, *signing, "-out", f"{name}.pem"], directory)
    extensions.unlink()
    (directory / request).unlink()


def _alternative(host: str) -> str:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return f"DNS:{host}"
    return f"IP:{host}"


def _run(program: str, arguments: Sequence[str], directory: Path) -> None:
    try:
        done = subprocess.run(
            [program, *arguments],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise click.ClickException(f"openssl did not run: {error}") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise click.ClickException(f"openssl {arguments[0]} failed: {last[0]}")
