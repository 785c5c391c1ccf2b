"""pip's own settings hold for every download: each of them here decides whether a file arrives."""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.errors import EnvironmentUnfitError, SourceError
from build.official import pip_session
from build.official.index import files
from build.official.transfer import download
from build.official.urls import local_path
from tests.build.official.settings import forget

from .server import Index, serving

NAME = "torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl"
DATA = bytes(range(256)) * 20
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost, with its key in the same file, that nobody has signed."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("certificate")
    command: list[str | Path] = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", folder / "key.pem", "-out", folder / "certificate.pem"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    both = folder / "both.pem"
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "certificate.pem").read_bytes())
    return both


def tls(certificate: Path, *, ask_client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if ask_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate)
    return context


@pytest.fixture(autouse=True)
def no_trust_store_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """These variables come before pip's `cert`, in pip too."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


def offering(**how: object) -> Index:
    made = Index(**how)  # type: ignore[arg-type]
    made.add(NAME, DATA)
    return made


def configured(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure pip by a file, as most machines do; `/etc/pip.conf` is read as well, and its folders are not wanted."""
    path.write_text(f"[global]\nfind-links =\nextra-index-url =\n{text.removeprefix('[global]')}")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(path))
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    forget()


def arrives(folder: Path) -> bool:
    """Return whether the index is read and its file is fetched, both with the settings of now."""
    forget()
    (file,) = files("torch")
    return download(file.url, folder / NAME, DIGEST).read_bytes() == DATA


@pytest.fixture
def secure(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with serving(offering(), tls(certificate)) as made:
        monkeypatch.setenv("PIP_INDEX_URL", made.url + "/simple")
        monkeypatch.setenv("NO_PROXY", "localhost")
        yield made


@pytest.mark.usefixtures("secure")
def test_a_certificate_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfitError, match="cannot be reached") as caught:
        arrives(tmp_path)
    assert "trusted-host" in caught.value.remedy


@pytest.mark.usefixtures("secure")
def test_cert(tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CERT", str(certificate))
    assert arrives(tmp_path)


@pytest.mark.usefixtures("secure")
def test_trusted_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_TRUSTED_HOST", "localhost")
    assert arrives(tmp_path)


def test_client_cert(tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "localhost")
    with serving(offering(), tls(certificate, ask_client=True)) as made:
        text = f"[global]\nindex-url = {made.url}/simple\ncert = {certificate}\n"
        configured(tmp_path / "pip.conf", text, monkeypatch)
        with pytest.raises(EnvironmentUnfitError, match="cannot be reached"):
            arrives(tmp_path)
        configured(tmp_path / "pip.conf", f"{text}client-cert = {certificate}\n", monkeypatch)
        assert arrives(tmp_path)


def test_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index has a name that only the proxy knows; the server answers for it."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving(offering()) as made:
        text = "[global]\nindex-url = http://index.invalid/simple\ntrusted-host = index.invalid\n"
        configured(tmp_path / "pip.conf", f"{text}proxy = {made.url}\n", monkeypatch)
        assert arrives(tmp_path)
        assert {path.partition("/simple")[0].partition("/files")[0] for _, path, _ in made.requests} == {
            "http://index.invalid"
        }


def test_index_without_encryption_on_another_host_is_ignored_as_by_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configured(tmp_path / "pip.conf", "[global]\nindex-url = http://index.invalid/simple\n", monkeypatch)
    assert files("torch") == ()
    assert "--trusted-host index.invalid" in capsys.readouterr().out.replace("\n", " ")


def test_password_of_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(offering(login="me:secret")) as made:
        monkeypatch.setenv("PIP_INDEX_URL", made.url + "/simple")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        with pytest.raises(SourceError, match="answers 401") as caught:
            arrives(tmp_path)
        assert "credentials" in caught.value.remedy
        (tmp_path / "netrc").write_text("machine 127.0.0.1\nlogin me\npassword secret\n")
        assert arrives(tmp_path)


def test_password_of_the_keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip asks the `keyring` command, newer versions for name and password; this one knows one password."""
    keyring = tmp_path / "bin" / "keyring"
    keyring.parent.mkdir()
    both = '{"username": "me", "password": "secret"}'
    keyring.write_text(f"#!/bin/sh\ncase $1 in get) echo secret;; --mode=creds) echo '{both}';; *) exit 1;; esac\n")
    keyring.chmod(0o755)
    monkeypatch.setenv("PATH", f"{keyring.parent}{os.pathsep}{os.environ['PATH']}")
    with serving(offering(login="me:secret")) as made:
        monkeypatch.setenv("PIP_INDEX_URL", made.url.replace("//", "//me@") + "/simple")
        monkeypatch.setenv("PIP_KEYRING_PROVIDER", "disabled")
        with pytest.raises(SourceError, match="answers 401"):
            arrives(tmp_path)
        monkeypatch.setenv("PIP_KEYRING_PROVIDER", "subprocess")
        assert arrives(tmp_path)


def test_find_links_may_be_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(offering()) as made:
        monkeypatch.setenv("PIP_FIND_LINKS", f"{made.url}/simple/torch/")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        assert arrives(tmp_path)


def test_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(offering()) as made:
        monkeypatch.setenv("PIP_INDEX_URL", made.url + "/simple")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        forget()
        assert files("torch") == ()
        assert made.requests == []


@pytest.mark.parametrize("text", ["no section\n", "[global]\ntimeout = soon\n"])
def test_a_configuration_with_an_error(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(tmp_path / "pip.conf", text, monkeypatch)
    with pytest.raises(EnvironmentUnfitError, match="pip's configuration") as caught:
        files("torch")
    assert "pip config debug" in caught.value.remedy


def test_the_default_is_pips_own_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(tmp_path / "pip.conf", "", monkeypatch)
    (url,) = pip_session.collector().search_scope.index_urls
    shown = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--help"], capture_output=True, text=True, check=True
    )
    assert url in "".join(shown.stdout.split())


@pytest.mark.parametrize(
    ("url", "path"), [("file:///a%20b/c", Path("/a b/c")), ("https://host/a", None), ("/a/b", None)]
)
def test_local_path(url: str, path: Path | None) -> None:
    assert local_path(url) == path
