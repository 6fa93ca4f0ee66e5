"""Credentials: a pod's service account, kubeconfigs of every sort, files that rotate or are half-written."""

from __future__ import annotations

import base64
import importlib
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
import yaml
from cronstable_k8s import kubeconfig, library
from cronstable_k8s.access import Access, Surroundings
from cronstable_k8s.backend import KubernetesElection, make
from cronstable_k8s.settings import parse
from cronstable_k8s.transport import HttpTransport

from cronstable.api import PluginError
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import FakeHost

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
CA = trustme.CA()
CERT = CA.issue_cert("node-a.example")


def story(function: Callable[[], Awaitable[None]]) -> None:
    run_virtual(function)


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The directory of a service account."""
    directory = tmp_path / "serviceaccount"
    directory.mkdir()
    CA.cert_pem.write_to_path(str(directory / "ca.crt"))
    (directory / "token").write_text("token-1")
    (directory / "namespace").write_text("batch\n")
    return directory


def access(account: Path, host: Any, environ: Any = None, **section: Any) -> Access:
    return Access(parse(section), host, Surroundings(IN_POD if environ is None else environ, str(account)))


def host() -> FakeHost:
    return FakeHost(VirtualClock.of_loop())


# -- in a pod


def test_a_pod_has_everything(account: Path) -> None:
    async def main() -> None:
        found = access(account, host())
        await found.load()
        assert (found.server, found.token) == ("https://10.96.0.1:443", "token-1")
        assert await found.namespace() == "batch"
        assert found.context is not None
        assert found.context.verify_mode is ssl.CERT_REQUIRED

    story(main)


def test_keys_of_the_section_win_over_the_pod(account: Path) -> None:
    async def main() -> None:
        found = access(account, host(), apiServer="https://10.0.0.1:6443/", leaseNamespace="other")
        await found.load()
        assert (found.server, await found.namespace()) == ("https://10.0.0.1:6443", "other")
        six = access(account, host(), {"KUBERNETES_SERVICE_HOST": "fd00::1"})
        await six.load()
        assert six.server == "https://[fd00::1]:443"

    story(main)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda d: (d / "token").unlink(), "token cannot be read: No such file"),
        (lambda d: (d / "token").write_text(""), "token holds no token"),
        (lambda d: (d / "token").write_text("two words"), "token holds no token"),
        (lambda d: (d / "ca.crt").write_text("-----BEGIN"), "ca.crt cannot be used"),
        (lambda d: (d / "ca.crt").unlink(), "ca.crt cannot be read"),
    ],
)
def test_a_pod_whose_account_is_broken_does_not_start(account: Path, spoil: Callable[[Path], Any], said: str) -> None:
    async def main() -> None:
        spoil(account)
        with pytest.raises(PluginError, match=said):
            await access(account, host()).load()

    story(main)


def test_what_is_no_pod_says_so(account: Path) -> None:
    async def main() -> None:
        with pytest.raises(PluginError, match=r"this is no pod .* name a kubeconfig"):
            await access(account, host(), {}).load()
        (account / "namespace").unlink()
        found = access(account, host())
        await found.load()
        with pytest.raises(PluginError, match="leaseNamespace: it is not set"):
            await found.namespace()

    story(main)


def test_a_rotated_token_counts_and_half_a_rotation_changes_nothing(account: Path) -> None:
    async def main() -> None:
        node = host()
        found = access(account, node)
        await found.load()
        (account / "token").write_text("")
        await found.refresh()
        await found.refresh()
        assert found.token == "token-1"
        assert len(node.logged("the credentials loaded before stay in use")) == 1
        (account / "token").write_text("token-2")
        await found.refresh()
        assert found.token == "token-2"
        before = found.context
        (account / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\nhalf")
        await found.refresh()
        assert found.context is before
        trustme.CA().cert_pem.write_to_path(str(account / "ca.crt"))
        await found.refresh()
        assert found.context is not before
        assert "token-" not in "".join(text for _, text in node.log_lines)

    story(main)


def test_files_are_looked_at_three_times_a_minute(account: Path) -> None:
    async def main() -> None:
        node = host()
        found = access(account, node)
        await found.load()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found.keep)
            await node.clock.sleep(1)
            (account / "token").write_text("token-2")
            await node.clock.sleep(20)
            assert found.token == "token-2"
            tasks.cancel_scope.cancel()

    story(main)


def test_a_disk_that_hangs_keeps_what_was_loaded(account: Path) -> None:
    async def main() -> None:
        node = host()
        found = access(account, node)
        await found.load()
        node.threads.hang.add("cronstable-k8s")
        await found.refresh()
        assert found.token == "token-1"
        assert node.logged("no answer from the disk within 5 s")
        with pytest.raises(PluginError, match="no answer from the disk"):
            await access(account, node).load()

    story(main)


def test_a_token_that_is_refused_is_read_again_and_the_request_sent_once_more(
    account: Path, server: Any, line: Any
) -> None:
    async def main() -> None:
        api, node = server(), host()
        api.tokens = {"token-1"}
        way = line(api)
        node.http = way
        found = access(account, node, apiServer="https://10.0.0.1")
        await found.load()
        transport = HttpTransport(node, found)
        path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/x"
        assert (await transport.request("GET", path, timeout=2)).status == 404
        api.tokens = {"token-2"}
        assert (await transport.request("GET", path, timeout=2)).status == 401
        (account / "token").write_text("token-2")
        assert (await transport.request("GET", path, timeout=2)).status == 404
        assert way.headers[-1]["authorization"] == "Bearer token-2"
        # Half a token on the disk: the one before is tried once more.
        (account / "token").write_text("tok")
        assert (await transport.request("GET", path, timeout=2)).status == 404
        assert way.headers[-1]["authorization"] == "Bearer token-2"
        assert all(context is found.context for context in way.contexts)

    story(main)


# -- a kubeconfig


def configured(tmp_path: Path, cluster: Any = None, user: Any = None, **context: Any) -> str:
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", **context}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def inline(blob: trustme.Blob) -> str:
    return base64.b64encode(blob.bytes()).decode()


def test_certificates_may_be_inline(account: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        user = {
            "client-certificate-data": inline(CERT.cert_chain_pems[0]),
            "client-key-data": inline(CERT.private_key_pem),
        }
        path = configured(tmp_path, {"certificate-authority-data": inline(CA.cert_pem)}, user, namespace="team")
        found = access(account, host(), kubeconfig=path)
        await found.load()
        assert (found.server, found.token, await found.namespace()) == ("https://10.0.0.1:6443", None, "team")
        assert found.context is not None
        assert len(found.context.get_ca_certs()) == 1

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    story(main)
    assert [path.name for path in tmp_path.glob("cronstable-*")] == []


def test_files_of_a_kubeconfig_lie_beside_it_and_rotate(account: Path, tmp_path: Path) -> None:
    async def main() -> None:
        CERT.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.pem"))
        CERT.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
        CA.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        (tmp_path / "tok").write_text("token-1\n")
        user = {"client-certificate": "tls.pem", "client-key": "tls.key", "tokenFile": "tok", "token": "not this one"}
        path = configured(tmp_path, {"certificate-authority": "ca.pem"}, user)
        found = access(account, host(), kubeconfig=path)
        await found.load()
        assert (found.token, await found.namespace()) == ("token-1", "batch")
        before = found.context
        other = CA.issue_cert("other.example")
        other.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.pem"))
        await found.refresh()
        assert found.context is before, "the key does not fit yet"
        other.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
        await found.refresh()
        assert found.context is not before

    story(main)


@pytest.mark.parametrize(
    ("cluster", "user", "said"),
    [
        ({"server": "https://admin:hunter2@10.0.0.1"}, {}, r"'https://\*\*\*@10.0.0.1' is not usable"),
        ({"server": "10.0.0.1"}, {}, "it must begin with https://"),
        ({"server": None}, {}, "it is missing"),
        ({"server": "http://10.0.0.1"}, {"token": "x"}, "in the clear"),
        ({"certificate-authority-data": "%%%"}, {}, "certificate-authority-data is not PEM in base64"),
        ({}, {"client-certificate": "tls.pem"}, "go together"),
        ({}, {"client-certificate-data": "eA==", "client-key-data": "eA=="}, "the kubeconfig's .* cannot be used"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named_with_its_fault(
    account: Path, tmp_path: Path, cluster: Any, user: Any, said: str
) -> None:
    async def main() -> None:
        with pytest.raises(PluginError, match=said) as caught:
            await access(account, host(), kubeconfig=configured(tmp_path, cluster, user)).load()
        assert "hunter2" not in str(caught.value)

    story(main)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "not YAML, line 1"),
        ("- x", "it is no mapping"),
        ("a: b", "current-context is not set"),
        ("current-context: x", "contexts has no entry named 'x'"),
        ("[" * 400, "not a kubeconfig|not YAML"),
        ("a: 2024-13-45", "a date or a number that is none"),
        ("a: 0x_", "a date or a number that is none"),
    ],
)
def test_what_is_no_kubeconfig_says_where(text: str, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        kubeconfig.parse(text, "/etc/kubeconfig")


def test_the_repr_of_a_target_shows_no_secret(tmp_path: Path) -> None:
    path = configured(tmp_path, {}, {"token": "hunter2"})
    assert "hunter2" not in repr(kubeconfig.parse(Path(path).read_text(), path))


# -- the backend's start


async def started(settings: Any, account: Path, node: FakeHost) -> None:
    await starting(settings, account, node, task_status=_Nobody())


async def starting(settings: Any, account: Path, node: FakeHost, *, task_status: Any) -> None:
    parsed, around = parse(settings), Surroundings({}, str(account))
    election = KubernetesElection(node.context("kubernetes", parsed), node, parsed, around)
    await election.run(node, task_status=task_status)


class _Nobody:
    def started(self, value: None = None) -> None:
        raise AssertionError("it must not start")


@pytest.mark.parametrize(
    ("user", "what"),
    [
        ({"exec": {"command": "aws"}}, "users[].user.exec"),
        ({"auth-provider": {"name": "gcp"}}, "users[].user.auth-provider"),
        ({"username": "a", "password": "hunter2"}, "users[].user.username"),
        ({"as": "somebody", "token": "x"}, "users[].user.as"),
    ],
)
def test_what_only_the_library_can_do_is_refused_over_http(account: Path, tmp_path: Path, user: Any, what: str) -> None:
    async def main() -> None:
        settings = {"kubeconfig": configured(tmp_path, {}, user), "clientLibrary": "http"}
        with pytest.raises(PluginError) as caught:
            await started(settings, account, host())
        assert what in str(caught.value)
        assert "pip install 'cronstable[kubernetes]' cronstable-k8s" in str(caught.value)
        assert "hunter2" not in str(caught.value)

    story(main)


class Client:
    """What of Kubernetes' own client is used, with the kubeconfig's text for an address."""

    def __init__(self, settings: Any) -> None:
        text = Path(settings.kubeconfig).read_text()
        if "half" in text:
            raise PluginError("half a file")
        self.host = text


def test_the_library_is_given_a_kubeconfig_again_that_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config"
    path.write_text("https://one")
    settings = parse({"kubeconfig": str(path)})

    def made(settings: Any) -> Any:
        client = Client(settings)
        return library.Loaded(client, client, library.signature(settings))  # type: ignore[arg-type]

    monkeypatch.setattr(library, "make", made)
    monkeypatch.setattr(library, "is_installed", lambda: True)

    async def main() -> None:
        node = host()
        transport = await library.connect(node, settings)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(transport.keep)
            await node.clock.sleep(1)
            for text in ("half one", "half two", "https://two"):
                assert transport.server == "https://one"
                path.write_text(text)
                await node.clock.sleep(20)
            assert transport.server == "https://two"
            tasks.cancel_scope.cancel()
        assert len(node.logged("half a file; the credentials loaded before stay in use")) == 1
        assert len(node.logged("were loaded again")) == 1

    story(main)


def test_a_folder_of_its_name_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_such_client").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(library, "PACKAGE", "no_such_client")
    assert not library.is_installed()
    (tmp_path / "no_such_client" / "__init__.py").touch()
    importlib.invalidate_caches()
    assert library.is_installed()


def test_a_missing_library_fails_the_start(account: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("cronstable_k8s.library.PACKAGE", "cronstable_no_such_package")
        settings = {"kubeconfig": configured(tmp_path), "clientLibrary": "library"}
        with pytest.raises(PluginError, match="is not installed: pip install"):
            await started(settings, account, host())

    story(main)


def test_a_rehearsal_names_credentials_that_do_not_load(account: Path, tmp_path: Path) -> None:
    async def main() -> None:
        node = host()
        for user, said in (
            ({"client-certificate-data": "eA==", "client-key-data": "eA=="}, "cannot be used"),
            ({}, ""),
        ):
            settings = {"kubeconfig": configured(tmp_path, {}, user), "clientLibrary": "http"}
            parsed, around = parse(settings), Surroundings({}, str(account))
            election = KubernetesElection(node.context("kubernetes", parsed), node, parsed, around)
            if said:
                with pytest.raises(PluginError, match=said):
                    await election.rehearse()
            else:
                await election.rehearse()

    story(main)


def test_an_apiserver_that_is_not_verified_is_worth_a_warning(
    account: Path, tmp_path: Path, server: Any, line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        node, way = host(), line(server())
        node.http = way
        settings = {
            "kubeconfig": configured(tmp_path, {"insecure-skip-tls-verify": True}),
            "clientLibrary": "http",
            "leaseNamespace": "default",
        }
        async with anyio.create_task_group() as tasks:
            await tasks.start(starting, settings, account, node)
            tasks.cancel_scope.cancel()
        assert node.logged("insecure-skip-tls-verify")
        context = way.contexts[-1]
        assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_NONE)

    story(main)


def test_settings_of_somebody_else_are_refused() -> None:
    async def main() -> None:
        with pytest.raises(PluginError, match="was not parsed by this plugin"):
            make(host().context("kubernetes", {}), host())

    story(main)
