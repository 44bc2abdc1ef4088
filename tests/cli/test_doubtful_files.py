"""Files with a broken chat template, or with a tokenizer not described in full: what is said, and what still works."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from localspec.gguf import read_header
from localspec.runtime.pool import Pool
from tests.cli.conftest import Command
from tests.llama.rewritten_gguf import rewritten
from tests.server.live import running

SHORT = ("--seed", "7", "--temperature", "0", "--max-tokens", "8", "--drafter", "none")
BROKEN = "The model's chat template is broken: Encountered unknown tag 'nosuch'."
DOUBT = "The file does not say how its tokenizer splits text (tokenizer.ggml.pre), so llama.cpp guesses"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Path:
    path = tmp_path_factory.mktemp("models") / "broken.gguf"
    return rewritten(tiny_target, path, without=("tokenizer.chat_template",), chat_template="{% nosuch %}")


def test_a_broken_template_does_not_stop_plain_text(command: Command, broken: Path, tiny_target: Path) -> None:
    refused = command("run", str(broken), "Once upon", *SHORT)
    assert (refused.code, refused.out) == (3, "")
    assert refused.err == f"localspec: {BROKEN} `localspec run --raw` completes plain text without it.\n"
    raw = command("run", "--raw", str(broken), "Once upon", *SHORT)
    assert raw == command("run", "--raw", str(tiny_target), "Once upon", *SHORT)
    pool = Pool(str(broken), settings={"context": 512})
    with running(pool) as server:
        asked = {"model": pool.default, "max_tokens": 8, "temperature": 0}
        url = f"http://127.0.0.1:{server.port}/v1"
        text = httpx.post(f"{url}/completions", json=asked | {"prompt": "Once upon"}, timeout=60).json()
        talk = httpx.post(f"{url}/chat/completions", json=asked | {"messages": [{"role": "user", "content": "Hi"}]})
    pool.close()
    assert text["choices"][0]["text"] == raw.out.removesuffix("\n")
    assert (talk.status_code, talk.json()["error"]["message"]) == (400, f"{BROKEN} Use /v1/completions.")


def test_check_and_show_say_that_a_template_is_broken(command: Command, broken: Path, tiny_target: Path) -> None:
    assert f"note: {BROKEN}" in command("check", str(broken)).out
    assert BROKEN in command("show", str(broken)).out
    for words in (("check", "--json"), ("show", "--json")):
        assert json.loads(command(*words, str(broken)).out)["template_fault"] == BROKEN
        assert json.loads(command(*words, str(tiny_target)).out)["template_fault"] == ""


def test_a_template_with_marks_for_trainers_answers(command: Command, tmp_path: Path, tiny_target: Path) -> None:
    template = read_header(tiny_target).chat_template
    marked = f"{template}{{% if 0 %}}{{% generation %}}{{{{ 1 }}}}{{% endgeneration %}}{{% endif %}}"
    path = rewritten(tiny_target, tmp_path / "m.gguf", without=("tokenizer.chat_template",), chat_template=marked)
    assert command("run", str(path), "Say: red", *SHORT) == command("run", str(tiny_target), "Say: red", *SHORT)
    assert "note:" not in command("check", str(path)).out


def test_a_tokenizer_that_is_not_described_in_full_is_said(command: Command, tmp_path: Path, tiny_target: Path) -> None:
    path = rewritten(tiny_target, tmp_path / "old.gguf", without=("tokenizer.ggml.pre",))
    result = command("run", str(path), "Say: red", *SHORT)
    assert result.code == 0
    assert result.err.startswith(f"localspec: {DOUBT}: answers may be worse.")
    assert f"note: {DOUBT}" in command("check", str(path)).out
    assert DOUBT in command("show", str(path)).out
