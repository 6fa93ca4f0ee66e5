"""``cronstable certs``: what it makes is what the backend loads."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cronstable_gossip import certs as module
from cronstable_gossip.certificates import expiries, load
from cronstable_gossip.settings import TlsFiles


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(module.certs, [str(argument) for argument in arguments])


def files(directory: Path, name: str) -> TlsFiles:
    return TlsFiles(str(directory / "ca.pem"), str(directory / f"{name}.pem"), str(directory / f"{name}.key"))


def test_the_certificates_load_and_hold_under_their_names(tmp_path: Path) -> None:
    done = run(tmp_path, "cron-a=cron-a.internal,::1", "cron-b")
    assert done.exit_code == 0, done.output
    assert "for trying out only" in done.output
    server, client = load(files(tmp_path, "cron-a")).server, load(files(tmp_path, "cron-b")).client
    for name in ("cron-a", "cron-a.internal", "localhost", "127.0.0.1", "::1"):
        shake(server, client, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, client, "cron-b")
    assert {path.name for path in tmp_path.iterdir()} == {
        *("ca.pem", "ca.key", "ca.srl", "cron-a.pem", "cron-a.key", "cron-b.pem", "cron-b.key")
    }


def shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """A whole handshake in memory."""
    a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(a, b, server_hostname=name),
        server.wrap_bio(b, a, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_keys_are_for_the_owner_alone(tmp_path: Path) -> None:
    assert run(tmp_path, "a").exit_code == 0
    for key in ("ca.key", "a.key"):
        assert stat.S_IMODE((tmp_path / key).stat().st_mode) == 0o600


def test_a_second_call_uses_the_ca_and_overwrites_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "a").exit_code == 0
    authority = (tmp_path / "ca.pem").read_bytes()
    assert run(tmp_path, "b", "--days", "3").exit_code == 0
    assert (tmp_path / "ca.pem").read_bytes() == authority
    (first,), (second,) = (list(expiries((tmp_path / f"{n}.pem").read_bytes())) for n in "ab")
    assert 26 * 86_400 < first - second < 28 * 86_400
    again = run(tmp_path, "a")
    assert again.exit_code == 1
    assert "a.pem, a.key already" in again.output


@pytest.mark.parametrize("node", ["", "=b", "ca", "a b", "a/b", "-a", "a=b;c", "a=DNS:x\n"])
def test_a_bad_name_is_refused_before_anything_is_made(tmp_path: Path, node: str) -> None:
    done = run(tmp_path / "new", "--", node)
    assert done.exit_code == 1
    assert not (tmp_path / "new").exists()


def test_without_openssl_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run(tmp_path, "a")
    assert done.exit_code == 1
    assert "openssl is not installed" in done.output


def test_a_directory_that_cannot_be_made_or_written_to_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / "ca.cnf").mkdir(parents=True)
    (tmp_path / "started" / "a.ext").mkdir(parents=True)
    for where, named in (("file/below", "file/below"), ("taken", "taken/ca.cnf"), ("started", "started/a.ext")):
        done = run(tmp_path / where, "a")
        assert done.exit_code == 1, done.output
        assert isinstance(done.exception, SystemExit), "no traceback"
        assert done.output.startswith(f"Error: {tmp_path / named}: "), done.output
        assert "name a directory that you can write to" in done.output
