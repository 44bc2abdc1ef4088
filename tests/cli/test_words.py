"""The words of the command line: what opens the chat, what is suggested for a mistyped one, what help shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from localspec.cli import COMMANDS, WITH_DEFAULT, build_parser
from localspec.cli.parser import MOST_USED, SHARED
from localspec.models.hub import hub
from tests.cli.conftest import Command

SHORT = ("--max-tokens", "12", "--temperature", "0", "--seed", "1", "--drafter", "none")
LINE = "Say: red house\n"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may ask the hub."""

    def ask(*_: object, **__: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(hub.Hub, "__init__", ask)


@pytest.mark.usefixtures("no_network")
def test_a_model_opens_the_chat(command: Command, tiny_target: Path) -> None:
    expected = command("chat", "--target", "tiny-target", *SHORT, stdin=LINE)
    assert (expected.code, expected.err) == (0, "")
    assert expected.out.strip()
    for words in (("tiny-target",), ("chat", "tiny-target"), (str(tiny_target),)):
        assert command(*words, *SHORT, stdin=LINE) == expected


def test_options_alone_open_the_chat(command: Command) -> None:
    result = command("--plain", "--target", "tiny-target", *SHORT, stdin=LINE)
    assert result.code == 0
    assert result.out == command("chat", "--target", "tiny-target", *SHORT, stdin=LINE).out


def test_a_unique_prefix_is_enough(command: Command) -> None:
    short = ("--max-tok", "12", "--temp", "0", "--se", "1", "--drafter", "none")
    assert command("run", LINE, *short) == command("run", LINE, *SHORT)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("serv",), 2, "no command, model or file called 'serv'. Did you mean serve"),
        (("tiny-targt",), 2, "Did you mean tiny-target"),
        (("chat", "tiny-targt"), 2, "no model, pair or file called 'tiny-targt'. Did you mean tiny-target"),
        (("zzzz",), 2, "`localspec help` lists the commands"),
        (("",), 2, "called ''"),
        (("someone/model:Q4_K_M",), 3, "is not installed. Try: localspec pull someone/model:Q4_K_M"),
        (("nosuch.gguf",), 3, "nosuch.gguf does not exist"),
        (("chat", "nosuch.gguf"), 3, "nosuch.gguf does not exist"),
        (("chat", "tiny-target", "--target", "tiny-target"), 2, "not both"),
        (("chat", "tiny-target", "--endpoint", "http://127.0.0.1:9"), 2, "name it with --model"),
        (("help", "srve"), 2, "There is no command 'srve'. Did you mean serve"),
        (("chats", "lst"), 2, "ACTION is 'lst'; it must be one of list, search"),
        (("run", "hi", "--tempereture", "1"), 2, "There is no option --tempereture here. Did you mean --temperature"),
        (("bench", "--wrkloads=copy"), 2, "There is no option --wrkloads here. Did you mean --workloads"),
        (("--temprature", "1"), 2, "There is no option --temprature here. Did you mean --temperature"),
        (("run", "hi", "--max", "1"), 2, "--max is short for several options: --max-draft-tokens, --max-ngram"),
        (("run", "hi", "--exact", "srict"), 2, "--exact is 'srict'; it must be one of auto, strict, off. Did you mean"),
        (("run", "hi", "--json=1"), 2, "--json takes no value"),
        (("run", "hi", "--target"), 2, "--target needs a value"),
        (("check",), 2, "PAIR|TARGET is missing"),
        (("import", "x", "--link", "--copy"), 2, "--copy and --link do not go together"),
        (("ps", "more"), 2, "'more' is one word too many"),
    ],
)
def test_a_mistyped_word_is_one_sentence(command: Command, words: tuple[str, ...], code: int, said: str) -> None:
    result = command(*words)
    assert said in result.err
    assert (result.code, result.out) == (code, "")
    assert len(result.err.splitlines()) == 1


def test_a_damaged_file_is_said_before_the_chat_opens(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "damaged.gguf"
    file.write_bytes(b"GGUF\x03")
    assert "is truncated" in command(str(file)).err
    (tmp_path / "folder").mkdir()
    assert "is a directory" in command(str(tmp_path / "folder")).err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "hi", "--rollback", "x"), "--rollback is 'x'; it must be a whole number between 1 and 64."),
        (("run", "hi", "--seed", "1.5"), "--seed is 1.5; it must be a whole number between 0 and 18,446,744"),
        (("run", "hi", "--temperature", "1e9"), "--temperature is 1e9; it must be a number between 0 and 100."),
        (("run", "hi", "--temperature", "nan"), "--temperature is nan; it must be a number between 0 and 100."),
        (("run", "hi", "--top-k", "9" * 5000), f"--top-k is {'9' * 40}...; it must be a whole number of 0 or more."),
        (
            ("run", "hi", "--gpu-layers", "all"),
            "--gpu-layers is 'all'; it must be a whole number of -1 or more, or auto.",
        ),
        (
            ("show", "tiny", "--gpu-layers", "-2"),
            "--gpu-layers is -2; it must be a whole number of -1 or more, or auto.",
        ),
        (("chat", "--context", "-5"), "--context is -5; it must be a whole number of 16 or more."),
        (
            ("chat", "--context", str(1 << 31)),
            "--context is 2147483648; it must be a whole number between 16 and 2,147",
        ),
        (("serve", "--port", "99999"), "--port is 99999; it must be a whole number between 0 and 65,535."),
        (("serve", "--drain", "inf"), "--drain is inf; it must be a number between 0 and 1,000,000,000."),
        (("chats", "undo", "first"), "NUMBER is 'first'; it must be a whole number."),
    ],
)
def test_a_number_beyond_sense_is_refused_in_words(command: Command, words: tuple[str, ...], said: str) -> None:
    result = command(*words)
    assert said in result.err
    assert result.code == 2
    assert len(result.err.splitlines()) == 1


def options_of(text: str) -> set[str]:
    """Long options that a help text lists, each at the start of a line."""
    return set(re.findall(r"^  (?:-\w(?: \S+)?, )?(--[\w-]+)", text, re.MULTILINE))


def test_help_is_short_and_help_all_is_not(command: Command) -> None:
    short, full = command("run", "--help"), command("run", "--help-all")
    assert (short.code, full.code, short.err, full.err) == (0, 0, "", "")
    assert options_of(short.out) < options_of(full.out)
    assert {"--temperature", "--json", "--help-all"} <= options_of(short.out)
    assert {"--rollback", "--typical-p"} <= options_of(full.out) - options_of(short.out)
    left_out = len(options_of(full.out) - options_of(short.out))
    assert short.out.endswith(f"\n{left_out} more options: localspec run --help-all\n")
    assert "--help-all" not in command("ps", "--help").out, "nothing is left out there"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_help(command: Command, name: str) -> None:
    shown = command("help", name)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(f"usage: localspec {name}")
    assert shown.out == command(name, "--help").out


def test_help_of_commands_below_commands(command: Command) -> None:
    for one in WITH_DEFAULT["bench"]:
        assert command("help", "bench", one).out.startswith(f"usage: localspec bench {one}")
    assert command("help").out == command("--help").out
    shown = command("help").out
    assert all(re.search(rf"^    {name}\s", shown, re.MULTILINE) for name in COMMANDS)


ORDERS = {
    "run": (["tiny", "Sort: 4"], ["--seed", "1"]),
    "check": (["a.gguf", "b.gguf"], ["--context", "2048"]),
    "chats export": (["1", "2"], ["--format", "json"]),
    "chats search": (["red", "house"], ["--json"]),
    "corpus add": (["a.txt", "b.txt"], ["--corpus-mb", "3"]),
    "extract": (["a.txt", "b.txt"], ["-o", "out", "--layers=1"]),
    "rm": (["one", "two"], ["--json"]),
    "search": (["red", "house"], ["--json"]),
    "help": (["chats", "export"], []),
    "bench run": (["tiny"], ["--json"]),
}
"""Commands with their words and options."""


@pytest.mark.parametrize("name", ORDERS)
def test_options_stand_anywhere(name: str) -> None:
    command, *below = name.split()
    words, options = ORDERS[name]
    parser = build_parser(command)
    expected = parser.parse_args([command, *below, *options, *words])
    for place in range(len(words) + 1):
        line = [command, *below, *words[:place], *options, *words[place:]]
        assert parser.parse_args(line) == expected, line
    assert parser.parse_args([command, *options, *below, *words]) == expected


def test_words_that_begin_with_a_dash() -> None:
    parser = build_parser("run")
    line = ["run", "--seed", "1", "tiny", "--json", "- a list", "--raw"]
    found = parser.parse_args(line)
    assert (found.words, found.seed, found.json, found.raw) == (["tiny", "- a list"], 1, True, True)
    assert parser.parse_args(["run", "tiny", "--seed", "2", "--", "--json"]).words == ["tiny", "--json"]
    assert parser.parse_args(["run", "--", "--seed", "--", "2"]).words == ["--seed", "--", "2"]
    assert parser.parse_args(["run", "-5"]).words == ["-5"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "a", "--json", "b"), "'b' is one word too many."),
        (("show", "--json"), "NAME|FILE is missing."),
        (("extract", "a.txt"), "-o/--out is missing."),
        (("extract", "-o", "x"), "FILE is missing."),
        (("run", "tiny", "--sede", "1", "hi"), "There is no option --sede here. Did you mean --seed?"),
        (("chats", "lst", "--json", "show"), "Did you mean list?"),
        (("chats", "--json"), "ACTION is missing."),
        (("chats", "--nosuch", "list"), "There is no option --nosuch here."),
    ],
)
def test_mistakes_between_words_are_said(command: Command, words: tuple[str, ...], said: str) -> None:
    result = command(*words)
    assert result.code == 2
    assert said in result.err


def test_what_short_help_shows_of_shared_options_exists() -> None:
    """Every name is one of an option in a group of those titles."""
    run = next(action.choices["run"] for action in build_parser("run")._actions if isinstance(action.choices, dict))
    groups = {group.title: group._group_actions for group in run._action_groups}
    assert set(SHARED) < set(groups)
    assert {action.dest for title in SHARED for action in groups[title]} >= MOST_USED
