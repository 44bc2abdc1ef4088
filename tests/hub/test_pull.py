"""`localspec pull` and its kin as programs of their own against the local hub, killed and starved where it hurts."""

from __future__ import annotations

import contextlib
import os
import pty
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from localspec.cli.output import not_used
from localspec.gguf import read_header
from localspec.models.installed.store import Store
from tests.hub.conftest import PAIR, Inside, Program
from tests.hub.server import LocalHub, sha256
from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, tiny_tensors

MIB = 1 << 20
PULL = ("pull", PAIR[0], "--draft", PAIR[1], "-y")
SHORT = ("Repeat this text exactly: one two", "--max-tokens", "12", "--seed", "1", "--exact", "off")


def sound(store: Store) -> bool:
    """Whether everything that is listed as good is good, to the last byte."""
    return all(
        not entry.fault and all(sha256(file.path.read_bytes()) == file.sha256 for file in entry.files)
        for entry in store.entries()
    )


def test_from_the_hub_to_an_answer(
    program: Program, local_hub: LocalHub, target_bytes: bytes, draft_bytes: bytes
) -> None:
    """The pair by the catalogue's name, then everything else by the repository's."""
    config = program.home / "config" / "localspec"
    config.mkdir(parents=True)
    rows = [("pulled-target", "target", PAIR[0], target_bytes), ("pulled-draft", "draft", PAIR[1], draft_bytes)]
    text = "".join(
        f'[[model]]\nname = "{name}"\nrole = "{role}"\nrepository = "{repository}"\nfile = "tiny-{role}-Q8_0.gguf"\n'
        f'sha256 = "{sha256(data)}"\n'
        for name, role, repository, data in rows
    )
    pair = '[[pair]]\nname = "pulled"\ntarget = "pulled-target"\ndraft = "pulled-draft"\n'
    (config / "models.toml").write_text(text + pair, encoding="utf-8")

    missing = program("run", "pulled", *SHORT)
    assert (missing.code, missing.out) == (3, "")
    assert "Try: localspec pull pulled" in missing.err

    done = program("pull", "pulled", "-y")
    assert done.code == 0, done.err
    assert "can draft for" in done.out
    assert "fits" in done.out
    assert 'localspec run pulled "Hello"' in done.out
    assert "\x1b" not in done.out + done.err
    assert all("loaded" in line or "checked" in line for line in done.err.splitlines())

    answer = program("run", "pulled", *SHORT, "--json", "--drafter", "draft")
    assert answer.code == 0, answer.err
    assert answer.data["stats"]["drafted_by_drafter"]["draft"] > 0
    by_repository = program("run", PAIR[0], *SHORT, "--json", HF_ENDPOINT="http://127.0.0.1:9")
    assert by_repository.data["tokens"] == answer.data["tokens"]
    listed = program("list", "--verify", "--json")
    assert listed.code == 0
    found = [entry for entry in listed.data if entry["source"] == "hub"]
    assert [entry["name"] for entry in found] == ["pulled-draft", "pulled-target"]
    assert [Path(entry["path"]).read_bytes() for entry in found] == [draft_bytes, target_bytes]


def test_a_dry_run_and_a_run_nobody_can_answer_leave_nothing(inside: Inside, local_hub: LocalHub) -> None:
    plan = inside(*PULL, "--dry-run", "--json").data["plan"]
    assert [part["role"] for part in plan["parts"]] == ["target", "draft"]
    assert plan["pair"]["fits"]
    assert plan["memory"]["fits"]
    assert plan["suggestions"] == []
    assert plan["missing_bytes"] == sum(part["bytes"] for part in plan["parts"])
    silent = inside(*PULL[:-1])
    assert silent.code == 2
    assert "-y loads without asking" in silent.err
    assert not list(inside.home.rglob("*.gguf"))
    assert inside.store.entries() == []
    assert not inside.cache.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("us/none",), 6, "shows no repository 'us/none'"),
        ((f"{PAIR[0]}:Q3_K_M",), 3, "no quantisation 'Q3_K_M'. It has: Q8_0"),
        (("us/gated",), 6, "us/gated is gated: it needs an account that accepted its terms. Accept them at http://"),
        ((PAIR[0], "--revision", "../x"), 2, "'../x' is not the name of a branch, tag or commit"),
    ],
)
def test_bad_input_is_one_sentence(
    inside: Inside, local_hub: LocalHub, arguments: tuple[str, ...], code: int, words: str
) -> None:
    local_hub.add("us/gated", {"m-Q8_0.gguf": gguf_bytes()}, gated=True)
    done = inside("pull", *arguments, "-y")
    assert (done.code, words in done.err) == (code, True), done.err
    assert len(done.err.strip().splitlines()) == 1
    assert inside.store.entries() == []


def test_a_target_alone_brings_suggestions(inside: Inside, local_hub: LocalHub) -> None:
    done = inside("pull", PAIR[0], "--dry-run")
    assert "suggested: tiny-draft" in done.out
    assert f"(localspec run {PAIR[0]}:Q8_0 --draft tiny-draft)" in done.out
    found = inside("pull", PAIR[0], "--dry-run", "--json").data["plan"]["suggestions"]
    assert [(one["draft"], one["installed"]) for one in found] == [("tiny-draft", True)]


def test_a_file_cannot_write_on_the_terminal(inside: Inside, local_hub: LocalHub) -> None:
    local_hub.add("us/paint", {"m\x9b2J-F32.gguf": gguf_bytes({**TINY_METADATA, "general.architecture": "x\x1b[2Jy"})})
    shown = [
        inside("pull", "us/paint", "-y"),
        inside("list"),
        inside("check", "us/paint", "tiny"),
        inside("rm", "us/paint"),
    ]
    text = "".join(done.out + done.err for done in shown)
    assert "xy, F32, commit" in text
    assert not {"\x1b", "\x9b"} & set(text)


def test_a_head_that_nothing_can_use_is_not_said_to_draft(
    inside: Inside, local_hub: LocalHub, tiny_target: Path
) -> None:
    metadata = {key: value for key, value in TINY_METADATA.items() if not key.startswith("tokenizer")}
    width = read_header(tiny_target).number("embedding_length")
    metadata |= {"general.architecture": "dflash-draft", "dflash-draft.target_hidden_size": width}
    local_hub.add("us/head", {"head-F32.gguf": gguf_bytes(metadata)})
    done = inside("pull", PAIR[0], "--draft", "us/head", "--dry-run")
    assert "as a head in the format of a fork" in done.out
    assert not_used("forked") in done.out


def test_a_pair_that_does_not_fit_costs_no_download(inside: Inside, local_hub: LocalHub) -> None:
    other = gguf_bytes(TINY_METADATA, tiny_tensors())
    local_hub.add("us/other", {"other-F32.gguf": other})
    done = inside("pull", PAIR[0], "--draft", "us/other", "-y")
    assert done.code == 3
    assert "cannot draft for" in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not inside.cache.exists()


def test_a_damaged_file_on_the_hub_is_refused_by_its_header(
    inside: Inside, local_hub: LocalHub, target_bytes: bytes
) -> None:
    local_hub.add("us/cut", {"cut-Q8_0.gguf": target_bytes[: 5 * MIB]})
    local_hub.add("us/text", {"text-Q8_0.gguf": b"<html>" * 1000})
    for repository, words in (("us/cut", "is truncated"), ("us/text", "is not a GGUF file")):
        done = inside("pull", repository, "-y")
        assert (done.code, words in done.err) == (3, True), done.err
    assert inside.store.entries() == []
    assert not inside.cache.exists()


def kill_at(local_hub: LocalHub, program: Program, position: int, *more: str) -> int:
    """Pulls the pair and kills the program with a signal it cannot catch once so much of a body lies on its disk."""
    process = None

    def kill(at: int) -> None:
        if process is None or at < position:
            return
        while process.poll() is None:
            with contextlib.suppress(OSError):  # it has just become whole
                if any(path.stat().st_size >= position - MIB for path in program.cache.rglob("*.incomplete")):
                    process.kill()
            time.sleep(0.01)

    local_hub.faults.on_body, local_hub.faults.block = kill, 128 << 10
    process = program.start(*PULL, *more)
    process.communicate(timeout=120)
    local_hub.faults.on_body = None
    return process.returncode


def test_a_killed_pull_goes_on(program: Program, local_hub: LocalHub, target_bytes: bytes, draft_bytes: bytes) -> None:
    for position in (int(3.5 * MIB), int(5.5 * MIB)):
        assert kill_at(local_hub, program, position) == -signal.SIGKILL
        assert program.store.entries() == []
    done = program(*PULL)
    assert done.code == 0, done.err
    assert sound(program.store)
    # Headers are read anew each time (up to 3 MiB a model); of the bodies only the unwritten MiB is lost.
    bodies = [seen for seen in local_hub.seen if seen.server == "content" and not seen.range.rpartition("-")[2]]
    starts = [seen.range for seen in bodies if "tiny-target" in seen.path]
    assert len(starts) == 3
    positions = [int(start.removeprefix("bytes=").rstrip("-") or 0) for start in starts]
    assert positions == [0, 3 * MIB, 5 * MIB]


def test_ctrl_c_says_that_it_can_go_on(program: Program, local_hub: LocalHub) -> None:
    local_hub.faults.seconds_per_block = 0.06
    reached = []
    local_hub.faults.on_body = lambda at: reached.append(at) if at >= 3 * MIB else None
    process = program.start(*PULL)
    while not reached and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on there" in err
    assert "Traceback" not in err
    assert program.store.entries() == []
    assert list(program.cache.rglob("*.incomplete"))
    local_hub.reset()
    removed = program("rm", "--partial")
    assert "interrupted downloads removed" in removed.out
    assert not list(program.cache.rglob("*.incomplete"))


def test_two_at_once_do_not_corrupt_each_other(
    program: Program, local_hub: LocalHub, target_bytes: bytes, draft_bytes: bytes
) -> None:
    local_hub.faults.seconds_per_block = 0.02
    both = [program.start(*PULL) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert len(program.store.entries()) == 2
    assert sound(program.store)
    full = [seen for seen in local_hub.seen if seen.server == "content" and not seen.range]
    assert len(full) == 2  # each file once


def test_wrong_bytes_and_a_revoked_token(program: Program, local_hub: LocalHub, target_bytes: bytes) -> None:
    local_hub.faults.wrong_byte = len(target_bytes) - 5
    done = program(*PULL)
    assert done.code == 6
    assert "sent wrong bytes for tiny-target-Q8_0.gguf" in done.err
    assert program.store.entries() == []
    assert not list(program.cache.rglob("snapshots/*/tiny-target*"))
    local_hub.reset()
    local_hub.faults.revoked.add("hf_old")
    done = program(*PULL, HF_TOKEN="hf_old")
    assert done.code == 6
    assert "refuses the access token in HF_TOKEN" in done.err
    assert "hf_old" not in done.err


def limit_file_size() -> None:
    """Files of this process end at 3 MiB, as on a disk that is full then."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * MIB, 3 * MIB))


def test_no_room_for_the_bytes(program: Program, local_hub: LocalHub, target_bytes: bytes) -> None:
    done = program(*PULL, before=limit_file_size)
    assert done.code == 6
    assert "is full" in done.err
    assert len([line for line in done.err.splitlines() if line.startswith("localspec:")]) == 1
    assert program.store.entries() == []
    again = program(*PULL)
    assert again.code == 0, again.err
    assert sound(program.store)


def test_no_room_is_told_before_a_byte_flows(program: Program, local_hub: LocalHub, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        done = program(*PULL, HF_HOME=str(folder))
        assert done.code == 6
        assert "There is no room: 8.4 MB to load, 2.1 MB free" in done.err
        assert not list(folder.rglob("*"))
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_offline_means_no_request(program: Program, local_hub: LocalHub) -> None:
    never = program("pull", PAIR[0], "--offline", "-y")
    assert never.code == 6
    assert "is not in the cache" in never.err
    assert program(*PULL).code == 0
    for index in program.home.glob("data/models.sqlite*"):
        index.unlink()
    local_hub.reset()
    for arguments, variables in (((*PULL, "--offline"), {}), (PULL, {"HF_HUB_OFFLINE": "1"})):
        done = program(*arguments, **variables)
        assert done.code == 0, done.err
        assert "nothing to load" in done.out
    assert local_hub.seen == []
    assert len(program.store.entries()) == 2


def test_a_plain_address(program: Program, local_hub: LocalHub, target_bytes: bytes) -> None:
    url = f"{local_hub.content_url}/{sha256(target_bytes)}/my-model.gguf"
    done = program("pull", url, "-y", "--json", HF_TOKEN="hf_secret")
    (entry,) = done.data["installed"]
    assert (entry["name"], entry["source"]) == ("my-model", "url")
    assert entry["files"][0]["sha256"] == sha256(target_bytes)
    assert {seen.token for seen in local_hub.seen} == {""}
    removed = program("rm", "my-model", "--json")
    assert removed.data == [{"name": "my-model", "path": entry["path"], "bytes": len(target_bytes), "kept": ""}]
    assert not Path(entry["path"]).exists()


def test_search_and_ps_and_rm(inside: Inside, local_hub: LocalHub) -> None:
    assert PAIR[0] in inside("search", "tiny").out
    assert inside("search", "nothing-like-it").code == 1
    assert "model gpt-oss-20b: ggml-org/gpt-oss-20b-GGUF" in inside("search", "gpt-oss").out
    named = inside("search", "qwen3.8", "--json").data
    assert [one["name"] for one in named["models"]] == ["qwen3.8-flash-next"]
    assert [one["name"] for one in named["pairs"]] == ["qwen3.8-27b-dflash2"]
    assert inside(*PULL).code == 0
    assert inside("ps", "--json").data == []
    kept = inside("rm", f"{PAIR[1]}:Q8_0")
    assert kept.code == 3
    assert f"is the draft of {PAIR[0]}:Q8_0" in kept.err
    chat = subprocess.Popen(
        [sys.executable, "-m", "localspec", "chat", "--target", PAIR[0], "--exact", "off"],
        env=inside.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        found: list[Any] = []
        while not found and chat.poll() is None:
            time.sleep(0.02)
            found = inside("ps", "--json").data
        assert [one["command"] for one in found] == ["chat"]
        assert f"{PAIR[0]}:Q8_0" in inside("ps").out
        busy = inside("rm", PAIR[0])
        assert busy.code == 3
        assert f"is open in process {chat.pid} (chat)" in busy.err
    finally:
        chat.kill()
        chat.communicate()
    assert inside("ps", "--json").data == []
    assert inside("rm", PAIR[0], PAIR[1]).code == 0
    assert inside.store.entries() == []
    assert not list(inside.cache.rglob("blobs/*"))


def on_a_terminal(program: Program, answer: str) -> tuple[int, str]:
    """Runs the pull without -y on a terminal of 110 columns, answers, and says what was on the screen."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "localspec", *PULL[:-1]],
        env=program.environment | {"TERM": "xterm", "COLUMNS": "110"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # a terminal ends with an error
        while data := os.read(leader, 65536):
            if b"[Y/n]" not in shown and b"[Y/n]" in shown + data:
                os.write(leader, answer.encode() + b"\n")
            shown += data
    os.close(leader)
    return process.wait(60), shown.decode()


def test_on_a_terminal_it_asks_and_shows_bars(program: Program, local_hub: LocalHub) -> None:
    code, shown = on_a_terminal(program, "no")
    assert code == 130
    assert "Nothing was loaded." in shown
    assert program.store.entries() == []
    local_hub.faults.seconds_per_block = 0.01
    code, shown = on_a_terminal(program, "")
    assert code == 0
    for words in ("in all", "━", "8.4/8.4 MB", "checking tiny-target-Q8_0.gguf", f"installed {PAIR[0]}:Q8_0"):
        assert words in shown
    assert sound(program.store)
    assert len(program.store.entries()) == 2


@pytest.mark.trial
def test_kills_at_any_moment(program: Program, local_hub: LocalHub) -> None:
    """By the clock: while planning, loading, checking, linking, writing the index."""
    chance = random.Random(7)
    ended = 0
    for _ in range(60):
        process = program.start(*PULL)
        try:
            process.communicate(timeout=chance.uniform(0.2, 2.5))
            ended += 1
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        assert sound(program.store)
        if len(program.store.entries()) == 2:
            for name in (PAIR[0], PAIR[1]):
                assert program("rm", name, "--force").code == 0
    assert program(*PULL).code == 0
    assert len(program.store.entries()) == 2
    assert sound(program.store)
