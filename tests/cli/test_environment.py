"""Odd environments: homes, proxies, files of settings, links and pipes. Each works, or is one sentence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from localspec import paths
from localspec.chat.text_file import read_text
from localspec.models.installed.catalog import Catalog
from localspec.tui.widgets.registry import read_keys
from tests.cli.conftest import Command

SHORT = ("--max-tokens", "4", "--temperature", "0", "--seed", "1", "--drafter", "none")
PROMPT = "Say: red house"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder in which nothing is yet, and nothing else that says where things are."""
    for name in ("HF_HUB_CACHE", "HF_HOME", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    for kind in ("DATA", "CONFIG", "CACHE"):
        monkeypatch.delenv(f"XDG_{kind}_HOME", raising=False)
        monkeypatch.delenv(f"LOCALSPEC_{kind}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_tilde_that_the_shell_left_is_the_home_folder(
    command: Command, home: Path, tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "x.gguf").symlink_to(tiny_target)
    (home / "prompt.txt").write_text(PROMPT)
    expected = command("run", "--target", str(tiny_target), PROMPT, *SHORT)
    assert (expected.code, expected.err) == (0, "")
    assert command("run", "--target=~/x.gguf", "--file=~/prompt.txt", *SHORT) == expected
    assert command("run", "~/x.gguf", PROMPT, *SHORT) == expected
    assert command("run", "~/x.gguf", *SHORT, stdin=PROMPT) == expected
    monkeypatch.setenv("LOCALSPEC_MODEL", "~/x.gguf")
    monkeypatch.setenv("LOCALSPEC_CONFIG", "~/own")
    assert paths.config_dir() == home / "own"
    assert command("run", PROMPT, *SHORT) == expected
    unknown = command("run", "--target=~nobody_x/x.gguf", PROMPT)
    assert (unknown.code, "~nobody_x/x.gguf does not exist" in unknown.err) == (3, True)
    assert command("run", "--target=tiny-target", "~ is a wave", *SHORT).code == 0


@pytest.mark.parametrize(
    "words", [("run", PROMPT), ("list",), ("import", "--find"), ("chats", "list"), ("use",), ("pull", "qwen3-8b")]
)
def test_a_home_that_is_no_whole_path_is_one_sentence(
    command: Command, home: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HOME", "somewhere")
    result = command(*words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(
        "localspec: There is no home folder: HOME is 'somewhere', which is no whole path. Set "
    )
    assert len(result.err.splitlines()) == 1
    assert not list(home.iterdir())


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may be somebody else")
def test_a_user_whom_the_system_does_not_know(tmp_path: Path) -> None:
    """As in a container that is started with a number for a user."""
    tmp_path.chmod(0o777)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOME", "LOCALSPEC_", "XDG_"))}
    folders = {f"LOCALSPEC_{kind}": str(tmp_path / kind) for kind in ("DATA", "CONFIG", "CACHE")}
    for environment, words, code, said in (
        (kept, ["list"], 2, "There is no home folder: HOME is not set, and the system does not know the user."),
        (kept | folders, ["list"], 0, "tiny"),
        (kept | folders, ["import", "--find"], 2, "There is no home folder"),
        (kept | folders, ["search", "--offline", "smol"], None, ""),
    ):
        result = subprocess.run(
            [sys.executable, "-m", "localspec", *words],
            cwd="/",
            env=environment | {"PYTHONPATH": str(Path(paths.__file__).parent.parent)},
            preexec_fn=lambda: os.setreuid(54321, 0),  # who asks is unknown, and may read Python
            capture_output=True,
            text=True,
        )
        assert "internal error" not in result.stderr
        assert said in result.stdout + result.stderr
        assert code is None or result.returncode == code


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        ("socks4://127.0.0.1:9", "'socks4://127.0.0.1:9' of ALL_PROXY cannot be used: it is no address of an HTTP"),
        ("ftp://me:secret@127.0.0.1:9", "'ftp://...@127.0.0.1:9' of ALL_PROXY cannot be used: it is no address of an"),
        ("http://[::1", "'http://[::1' of ALL_PROXY cannot be used: it is no address of an HTTP"),
        ("socks5://127.0.0.1:9", "cannot be"),  # used, without the package socksio; else reached
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        ("run", "--endpoint", "http://192.0.2.1:9/v1", "--model", "m", "hi"),
        ("connect", "codex", "--url", "http://192.0.2.1:9"),
        ("pull", "someone/model:Q4_K_M"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_one_sentence(
    command: Command, monkeypatch: pytest.MonkeyPatch, proxy: str, said: str, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setenv("all_proxy", proxy)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    result = command(*words)
    assert said in result.err, result.err
    assert result.code in (1, 2, 6)
    assert "internal error" not in result.err
    assert "secret" not in result.err


def test_doctor_says_which_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    from localspec.checks.doctor import examine_updates

    monkeypatch.setenv("ALL_PROXY", "http://[::1")
    found = examine_updates("http://192.0.2.1/")
    assert "of ALL_PROXY cannot be used" in found.value
    assert found.advice


def test_settings_may_begin_with_a_byte_order_mark(command: Command, home: Path) -> None:
    folder = paths.config_dir()
    folder.mkdir(parents=True)
    endpoint = '[[endpoint]]\nname = "far"\nendpoint = "http://127.0.0.1:9/v1"\n'
    (folder / "models.toml").write_text(endpoint, encoding="utf-8-sig")
    assert Catalog.load().endpoints["far"].endpoint == "http://127.0.0.1:9/v1"
    assert command("list").code == 0
    (folder / "keys.toml").write_text('[keys]\nquit = "ctrl+g"\n', encoding="utf-8-sig")
    assert read_keys() == {"quit": "ctrl+g"}


def test_a_link_to_itself_is_passed_by_or_said(command: Command, home: Path, tiny_target: Path) -> None:
    snapshot = home / ".cache/huggingface/hub/models--someone--Tiny/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "loop.gguf").symlink_to("loop.gguf")
    (snapshot / "tiny-hub.gguf").symlink_to(tiny_target)
    found = command("import", "--find")
    assert (found.code, "tiny-hub" in found.out, "loop" in found.out) == (0, True, False)
    (home / "loop").symlink_to("loop")
    assert paths.real(home / "loop") == home / "loop"
    result = command("extract", "--target", "tiny-target", "-o", "loop", str(snapshot / "loop.gguf"))
    assert (result.code, "Too many levels of symbolic links" in result.err) == (2, True)


def test_no_file_asks_pathlib_for_the_whole_path() -> None:
    """`Path.resolve` fails at a link to itself; `paths.real` does not."""
    sources = Path(paths.__file__).parent.rglob("*.py")
    asking = [one.name for one in sources if re.search(r"\.resolve\((strict=\w+)?\)", one.read_text(encoding="utf-8"))]
    assert asking == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize(
    "words",
    [
        ("run", "-f", "pipe", *SHORT),
        ("run", "--batch", "pipe"),
        ("run", "--endpoint", "http://127.0.0.1:9", "--api-key-file", "pipe", "hi"),
        ("verify", "--prompts", "pipe", "--limit", "1"),
        ("extract", "--target", "tiny-target", "-o", "out", "pipe"),
        ("chats", "import", "pipe"),
        ("corpus", "add", "pipe"),
        ("run", "--target", "pipe", "hi"),
    ],
)
def test_a_pipe_that_nobody_writes_to_is_one_sentence(command: Command, home: Path, words: tuple[str, ...]) -> None:
    os.mkfifo(home / "pipe")
    result = command(*words)
    assert result.code in (2, 3)
    assert "pipe" in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_that_somebody_writes_to_is_read_to_its_end(home: Path) -> None:
    pipe = home / "pipe"
    os.mkfifo(pipe)
    begun = threading.Event()

    def write() -> None:
        with open(pipe, "w") as file:
            begun.set()
            file.write(PROMPT)
            file.flush()
            file.write(PROMPT * 20_000)  # more than a pipe holds

    writer = threading.Thread(target=write)
    writer.start()
    assert read_text(pipe) == PROMPT * 20_001
    writer.join()
    assert begun.is_set()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_settings_that_are_a_pipe_are_not_waited_for(command: Command, home: Path) -> None:
    folder = paths.config_dir()
    folder.mkdir(parents=True)
    os.mkfifo(folder / "model.json")
    assert "tiny answers" in command("use").out
    os.mkfifo(folder / "models.toml")
    result = command("list")
    assert (result.code, "models.toml: it is a pipe, not a file" in result.err) == (2, True)


def test_too_little_memory_is_one_sentence(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    code = "import localspec.cli as cli\ncli._run = lambda given: bytearray(1 << 40)\nexit(cli.main(['ps']))"
    limit = 8 << 30
    result = subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 3
    assert result.stderr.startswith("localspec: There is too little memory for it.")
