"""HTTPS, and sockets that are files: the real server, with a certificate made here."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from localspec.errors import UsageError
from localspec.remote.asking import Requests
from localspec.remote.server import Server
from localspec.runtime.pool import Pool
from localspec.server.http import listen
from localspec.server.http.listen import UnixSocket
from localspec.server.http.settings import ServerSettings
from tests.server.live import COPIED, COPY, events, started, user

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs sockets that are files")
BODY = {"messages": [user(COPY)], "temperature": 0}


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of localhost that signs itself, and its key."""
    openssl = shutil.which("openssl") or pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("certificate")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def test_https_answers_and_streams(pool: Pool, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    settings = ServerSettings(ssl_cert=cert, ssl_key=key, drain_seconds=0.0)
    settings.check_certificate()
    listening = listen.bind("127.0.0.1", 0)
    url = listen.url_of(listening, "https")
    assert url == f"https://127.0.0.1:{listening.getsockname()[1]}/v1"
    trusting = ssl.create_default_context(cafile=cert)
    with started(pool, settings, listening), httpx.Client(verify=trusting, timeout=60) as client:
        whole = client.post(f"{url}/chat/completions", json=BODY)
        streamed = client.post(f"{url}/chat/completions", json=BODY | {"stream": True})
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{url}/models")
        with pytest.raises(httpx.HTTPError):
            httpx.get(url.replace("https:", "http:") + "/models")
    assert whole.json()["choices"][0]["message"]["content"] == COPIED
    said = [event["choices"][0]["delta"].get("content") or "" for event in events(streamed.text)[:-1]]
    assert "".join(said) == COPIED


def test_certificates_of_the_environment_count_for_this_machine_too(
    pool: Pool, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cert, key = certificate
    settings, listening = ServerSettings(ssl_cert=cert, ssl_key=key, drain_seconds=0.0), listen.bind("127.0.0.1", 0)

    def models() -> list[str]:
        return Requests(Server(listen.url_of(listening, "https"))).models()

    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")  # not asked
    with started(pool, settings, listening):
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert models()[0] == pool.default
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
        with pytest.raises(UsageError, match=r"SSL_CERT_FILE \(.*missing.pem\) cannot be read: No such file"):
            models()


def test_a_certificate_that_cannot_be_used_is_one_sentence(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    words = tmp_path / "words.pem"
    words.write_text("no certificate\n")
    other = tmp_path / "other.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(other), "2048"], check=True, capture_output=True)
    for wrong, said in (
        ((words, key), "no PEM file"),
        ((cert, None), "no PEM file"),
        ((cert, other), "the key is another one's"),
        ((tmp_path / "missing.pem", key), "No such file"),
    ):
        with pytest.raises(UsageError, match=said):
            ServerSettings(ssl_cert=wrong[0], ssl_key=wrong[1]).check_certificate()
    with pytest.raises(UsageError, match="no certificate"):
        ServerSettings(ssl_key=key)
    both = tmp_path / "both.pem"
    both.write_text(cert.read_text() + key.read_text())
    ServerSettings(ssl_cert=both).check_certificate()


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket in it."""
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"ls-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def test_a_socket_that_is_a_file_answers_this_user_alone(pool: Pool) -> None:
    with short_folder() as folder:
        path = folder / "s"
        settings = ServerSettings(host=f"unix:{path}", drain_seconds=0.0)
        listening = listen.bind(settings.host, settings.port)
        assert listen.url_of(listening) == f"unix:{path}"
        with (
            started(pool, settings, listening),
            httpx.Client(
                transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost", timeout=60
            ) as client,
        ):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert client.get("/v1/models").status_code == 200
            assert client.get("/v1/models", headers={"Host": "any.example"}).status_code == 200
            answer = client.post("/v1/chat/completions", json=BODY)
            met = list[socket.AddressFamily]()
            requests = Requests(Server("http://localhost"), path, lambda connection: met.append(connection.family))
            assert (requests.models()[0], met) == (pool.default, [socket.AF_UNIX])
            with pytest.raises(UsageError, match=r"listens at .* already"):
                listen.bind(settings.host, 0)
        assert answer.json()["choices"][0]["message"]["content"] == COPIED
        assert not path.exists()


def test_a_socket_of_a_server_that_is_gone_is_replaced(tmp_path: Path) -> None:
    with short_folder() as folder:
        path = folder / "s"
        stale = socket.socket(socket.AF_UNIX)
        stale.bind(str(path))
        stale.close()
        first = UnixSocket(path)
        path.unlink()
        second = UnixSocket(path)  # another server's, of which the first knows nothing
        first.close()
        assert path.exists()
        second.close()
        assert not path.exists()
        path.write_text("mine")
        with pytest.raises(UsageError, match="no socket"):
            UnixSocket(path)
        assert path.read_text() == "mine"
        with pytest.raises(UsageError, match="Cannot listen at"):
            UnixSocket(folder / "missing" / "s")
        with pytest.raises(UsageError, match="Cannot listen at"):
            UnixSocket(folder / ("x" * 200))
