"""A trust store is read for the first connection, not while a library is imported."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from cronstable.plugin import trust
from cronstable.plugin.trust import trust_store_on_demand


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """The system's trust store, which trusts one authority."""
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    return made


def test_a_context_made_during_an_import_trusts_nobody_until_it_is_used(authority: trustme.CA) -> None:
    with trust_store_on_demand():
        context = ssl.create_default_context()
    assert context.cert_store_stats()["x509"] == 0
    assert context.verify_mode is ssl.CERT_REQUIRED
    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    assert context.cert_store_stats()["x509_ca"] == 1
    assert type(context) is ssl.SSLContext


def test_such_a_context_trusts_whom_the_system_trusts(authority: trustme.CA) -> None:
    with trust_store_on_demand():
        context = ssl.create_default_context()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server_side)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    for one in (client, server):
        with pytest.raises(ssl.SSLWantReadError):
            one.do_handshake()
    client.do_handshake()
    server.do_handshake()
    assert client.getpeercert() is not None


def test_a_context_made_before_or_after_is_as_ever(authority: trustme.CA) -> None:
    with trust_store_on_demand():
        pass
    assert "set_default_verify_paths" not in vars(ssl.SSLContext)
    assert ssl.create_default_context().cert_store_stats()["x509_ca"] == 1


def test_a_context_may_be_used_while_the_import_goes_on(authority: trustme.CA) -> None:
    with trust_store_on_demand():
        context = ssl.create_default_context()
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    assert context.cert_store_stats()["x509_ca"] == 1


def test_a_context_counts_as_usual_only_once_it_knows_whom_to_trust(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[bool] = []
    with trust_store_on_demand():
        context = ssl.create_default_context()
    monkeypatch.setattr(trust, "_load", lambda context: kinds.append(type(context) is ssl.SSLContext))
    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    assert kinds == [False]
    assert type(context) is ssl.SSLContext


def test_an_import_may_lead_to_another_one(authority: trustme.CA) -> None:
    with trust_store_on_demand():
        with trust_store_on_demand():
            pass
        context = ssl.create_default_context()
        assert context.cert_store_stats()["x509"] == 0
    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    assert context.cert_store_stats()["x509_ca"] == 1
    assert "set_default_verify_paths" not in vars(ssl.SSLContext)


def test_a_context_of_a_class_of_its_own_is_left_alone(authority: trustme.CA) -> None:
    class Special(ssl.SSLContext):
        pass

    with trust_store_on_demand():
        context = Special(ssl.PROTOCOL_TLS_CLIENT)
        context.set_default_verify_paths()
    assert context.cert_store_stats()["x509_ca"] == 1
    assert type(context) is Special


def test_the_web_api_is_loaded_without_reading_the_systems_trust_store() -> None:
    program = (
        "import os\n"
        "from cronstable.plugin.manager import load_factory, load_plugins\n"
        "provided = load_plugins(os.environ).services['web']\n"
        "load_factory(provided.descriptor.factory, provided)\n"
        "import gc, ssl\n"
        "contexts = [one for one in gc.get_objects() if isinstance(one, ssl.SSLContext)]\n"
        "assert not any(one.cert_store_stats()['x509'] for one in contexts)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
