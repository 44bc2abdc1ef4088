"""Names in models.toml that are models of servers: run, chat, list and show take them, the rest refuses them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.runtime.pool import Pool
from tests.cli.conftest import Command
from tests.server.live import COPIED, COPY, running
from tests.tui.endpoint import Endpoint, served

ASKED = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """A server that models.toml calls `work`, its first model `first`, and with a keyring's key `home`."""
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "another server's")
    monkeypatch.setenv("WORK_KEY", "sesame")
    with served(Endpoint()) as one:
        tables = (
            f'name = "work"\nendpoint = "{one.url}"\nmodel = "large"\nkey_env = "WORK_KEY"\n',
            f'name = "first"\nendpoint = "{one.url}/v1"\n',
            f'name = "home"\nendpoint = "{one.url}"\nkeyring = "localspec"\n',
        )
        text = "".join(f"[[endpoint]]\n{table}" for table in tables)
        (tmp_path / "models.toml").write_text(text, encoding="utf-8")
        yield one


@pytest.mark.parametrize(
    "words",
    [
        *(["run", "work", "Hi"], ["run", "--target", "work", "Hi"], ["run", "--model", "work", "Hi"]),
        *(["chat", "--plain", "work"], ["chat", "--plain", "--model", "work"], ["work"]),
    ],
)
def test_a_name_stands_for_server_model_and_key(command: Command, endpoint: Endpoint, words: list[str]) -> None:
    result = command(*words, stdin="" if words[0] == "run" else "Hi\n")
    assert (result.code, result.out) == (0, "Hello there.\n"), result.err
    (request,), (headers,) = endpoint.requests, endpoint.headers
    assert (request["model"], request["messages"]) == ("large", ASKED)
    assert headers["Authorization"] == "Bearer sesame"


def test_another_model_of_the_server_and_another_key(command: Command, endpoint: Endpoint, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("open\n", encoding="utf-8")
    assert command("run", "work", "Hi", "--model", "small", "--api-key-file", str(key)).code == 0
    assert command("run", "first", "Hi").code == 0
    assert [request["model"] for request in endpoint.requests] == ["small", "served-model"]
    assert [one.get("Authorization") for one in endpoint.headers] == ["Bearer open", None]


def test_a_missing_key_is_said_before_anything_is_sent(
    command: Command, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORK_KEY")
    for words in (["run", "work", "Hi"], ["chat", "--plain", "work"]):
        result = command(*words)
        assert (result.code, result.out) == (2, "")
        assert result.err == (
            "localspec: The key of 'work' is in the environment variable WORK_KEY, which is not set.\n"
        )
    assert endpoint.requests == []


def test_lists_name_server_and_model_and_no_key(command: Command, endpoint: Endpoint) -> None:
    listed = command("list")
    assert f"large at {endpoint.url}" in next(line for line in listed.out.splitlines() if line.startswith("work "))
    rows = {row["name"]: row for row in json.loads(command("list", "--json").out)}
    assert (rows["work"]["role"], rows["work"]["endpoint"], rows["work"]["fault"]) == ("endpoint", endpoint.url, "")
    catalog = json.loads(command("list", "--catalog", "--json").out)
    assert [one["name"] for one in catalog["endpoints"]] == ["work", "first", "home"]
    shown = command("show", "work")
    assert "environment variable WORK_KEY" in shown.out
    assert "keyring, service localspec" in command("show", "home").out
    assert json.loads(command("show", "work", "--json").out)["model"] == "large"
    assert "sesame" not in listed.out + shown.out + json.dumps(rows)
    assert endpoint.requests == []


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["verify", "--target", "work"],
            ["tune", "work"],
            ["bench", "--target", "work"],
            ["serve", "--target", "work"],
        ),
        *(["pull", "work"], ["rm", "work"], ["suggest", "work"], ["check", "work", "tiny-draft"]),
        *(["show", "work", "--as", "vllm"], ["run", "--draft", "work", "Hi"], ["doctor", "--target", "work"]),
    ],
)
def test_what_needs_a_model_here_says_so(command: Command, endpoint: Endpoint, words: list[str]) -> None:
    result = command(*words)
    assert (result.code, result.out) == (3, "")
    assert result.err == (
        f"localspec: 'work' is large at {endpoint.url}, and this needs a model of this machine. "
        "`localspec run`, `localspec chat` and /model can use it.\n"
    )
    assert endpoint.requests == []


def test_options_of_a_model_here_are_refused(command: Command, endpoint: Endpoint) -> None:
    result = command("run", "work", "Hi", "--context", "64")
    assert result.code == 2
    assert "--context needs a model of this machine. Leave it out, or name another model than 'work'." in result.err


def test_the_real_endpoint_answers_by_its_name(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path))
    pool = Pool(settings={"context": 512, "exact": "strict"})
    with running(pool) as server:
        text = f'[[endpoint]]\nname = "work"\nendpoint = "http://127.0.0.1:{server.port}"\n'
        (tmp_path / "models.toml").write_text(text, encoding="utf-8")
        result = command("run", "work", COPY, "--temperature", "0", "--max-tokens", "40")
    pool.close()
    assert (result.code, result.out) == (0, COPIED + "\n"), result.err
