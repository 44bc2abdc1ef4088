"""What people type for a model on the hub, and which file they get."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.errors import LocalspecError, ModelError, UsageError
from localspec.models.hub.names import (
    RemoteFile,
    RepositoryModel,
    RepositoryName,
    Url,
    choices,
    choose,
    family,
    parse,
    quant_of,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user/repo", RepositoryName("user/repo")),
        ("user/repo:Q4_K_M", RepositoryName("user/repo", "Q4_K_M")),
        (" user/repo:q8_0 ", RepositoryName("user/repo", "q8_0")),
        ("hf.co/user/repo:Q4_0", RepositoryName("user/repo", "Q4_0")),
        ("HF.co/user/repo", RepositoryName("user/repo")),
        ("hf://user/repo/x.gguf", RepositoryName("user/repo", file="x.gguf")),
        ("user/repo/a/b.gguf", RepositoryName("user/repo", file="a/b.gguf")),
        ("user/repo:b.gguf", RepositoryName("user/repo", file="b.gguf")),
        ("https://huggingface.co/user/repo", RepositoryName("user/repo")),
        ("https://huggingface.co/user/repo/tree/v1", RepositoryName("user/repo", revision="v1")),
        (
            "https://huggingface.co/u/r/resolve/main/a/b%20c.gguf?download=true",
            RepositoryName("u/r", file="a/b c.gguf", revision="main"),
        ),
        ("https://hf.co/u/r/blob/1234abc/x.gguf", RepositoryName("u/r", file="x.gguf", revision="1234abc")),
        ("http://127.0.0.1:9/u/r:Q2_K", RepositoryName("u/r", "Q2_K")),
        ("https://example.org/d/my.gguf?x=1", Url("https://example.org/d/my.gguf?x=1")),
        ("tiny", None),
        ("model.gguf", None),
        ("folder/model.gguf", None),
        ("./folder/model.gguf", None),
        ("/abs/x.gguf", None),
        ("", None),
    ],
)
def test_forms(text: str, expected: object) -> None:
    assert parse(text, ("127.0.0.1:9",)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org/model.bin",
        "https://[::1/model.gguf",
        "https://example.org/.gguf",
        "https://huggingface.co/user",
        "https://huggingface.co/user/repo/discussions/3",
        "user/repo/../x.gguf",
        "user/repo:/etc/x.gguf",
        "https://huggingface.co/u/r/resolve/main/..%2f..%2fx.gguf",
    ],
)
def test_addresses_that_lead_nowhere(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


@given(st.text(max_size=40) | st.from_regex(r"[a-z./:\\%-]{1,40}\.gguf", fullmatch=True))
def test_no_text_at_all_names_a_file_outside_its_repository(text: str) -> None:
    try:
        found = parse(text)
    except LocalspecError:
        return
    if isinstance(found, RepositoryName):
        pieces = [*found.repository.split("/"), *found.file.split("/")]
        assert ".." not in pieces
        assert not found.file.startswith("/")
        assert "\\" not in found.file


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"),
        ("UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("BF16/model-00001-of-00003.gguf", "BF16"),
        ("m.IQ4_XS.gguf", "IQ4_XS"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("stories260K-f32.gguf", "F32"),
        ("m-TQ1_0.gguf", "TQ1_0"),
        ("Qwen3.gguf", ""),
    ],
)
def test_quantisation_in_a_name(name: str, quant: str) -> None:
    assert quant_of(name) == quant


def files(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, 100 + number, f"https://x/{name}") for number, name in enumerate(names)]


MANY = files("m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-f16.gguf", "mmproj-m-f16.gguf", "README.md")
SPLIT = files(*(f"Q4_K_M/m-Q4_K_M-{part:05d}-of-00003.gguf" for part in (2, 1, 3)), "m-Q8_0-00001-of-00002.gguf")


def chosen(name: str, among: list[RemoteFile]) -> RepositoryModel:
    parsed = parse(name)
    assert isinstance(parsed, RepositoryName)
    return choose(parsed, among)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("u/r", "m-Q4_K_M.gguf"),
        ("u/r:q2_k", "m-Q2_K.gguf"),
        ("u/r:F16", "m-f16.gguf"),
        ("u/r/m-Q8_0.gguf", "m-Q8_0.gguf"),
    ],
)
def test_the_file_that_is_meant(name: str, file: str) -> None:
    assert [found.name for found in chosen(name, MANY).files] == [file]


def test_the_default_without_q4_k_m() -> None:
    assert chosen("u/r", files("a-Q2_K.gguf", "a-Q8_0.gguf")).quant == "Q8_0"
    assert chosen("u/r", files("a-Q2_K.gguf", "a-IQ1_S.gguf")).quant == "Q2_K"
    assert chosen("u/r", files("whatever.gguf")).quant == ""
    assert chosen("u/r:Q4_K_XL", files("a-UD-Q4_K_XL.gguf")).quant == "UD-Q4_K_XL"


def test_heads_alone_are_taken_with_eight_bits_or_more() -> None:
    heads = files("m-DSpark-Q4_K_M.gguf", "m-DSpark-F16.gguf", "m-DSpark-Q8_0.gguf")
    assert chosen("u/r", heads).quant == "Q8_0"
    assert chosen("u/r", heads[:2]).quant == "F16"
    assert chosen("u/r:Q4_K_M", heads).quant == "Q4_K_M"
    whole = files("m-MTP-Q4_K_M.gguf", "m-MTP-Q8_0.gguf")
    assert chosen("u/r", whole).quant == "Q4_K_M", "whole models have the word for what is inside"


@pytest.mark.parametrize(
    "drafter",
    [
        "mtp-m-Q4_0.gguf",
        "m-MTP-BF16.gguf",
        "dflash-kquant.gguf",
        "m-DFlash2-Q4_0.gguf",
        "m-dspark-Q4_0.gguf",
        "eagle3-m.gguf",
    ],
)
def test_a_drafter_beside_a_model_is_not_taken_for_it(drafter: str) -> None:
    among = files(drafter, "m-Q4_0.gguf", "m-BF16.gguf")
    assert chosen("u/r:Q4_0", among).files[0].name == "m-Q4_0.gguf"
    assert chosen("u/r:BF16", among).files[0].name == "m-BF16.gguf"
    assert [choice.stem for choice in choices(among)] == ["m-Q4_0", "m-BF16"]
    assert chosen(f"u/r/{drafter}", among).files[0].name == drafter, "it may be asked for"
    assert chosen("u/r", files(drafter)).files[0].name == drafter, "a repository of its own"


def test_a_name_with_such_a_word_inside_is_a_model() -> None:
    assert chosen("u/r", files("smtpx-Q4_0.gguf", "m-mtp-Q4_0.gguf")).files[0].name == "smtpx-Q4_0.gguf"


def test_split_models_are_whole_and_in_order() -> None:
    found = chosen("u/r:Q4_K_M", SPLIT)
    assert [file.name[-19:-14] for file in found.files] == ["00001", "00002", "00003"]
    assert found.size == 100 + 101 + 102
    assert [choice.quant for choice in choices(SPLIT)] == ["Q4_K_M"]  # a part of the other is missing
    assert chosen(f"u/r/{found.files[1].name}", SPLIT) == found


def test_what_is_not_there_is_offered() -> None:
    with pytest.raises(ModelError, match="no quantisation 'Q9'") as caught:
        chosen("u/r:Q9", MANY)
    assert "Q2_K (100 bytes), Q4_K_M" in caught.value.hint
    assert "mmproj" not in caught.value.hint
    with pytest.raises(ModelError, match=r"has no file 'x.gguf' \(any more\)"):
        chosen("u/r/x.gguf", MANY)
    with pytest.raises(ModelError, match="holds no complete GGUF model"):
        chosen("u/r", files("README.md", "mmproj-x-f16.gguf"))
    with pytest.raises(ModelError, match=r"means several files: a-Q8_0\.gguf, b-Q8_0\.gguf"):
        chosen("u/r", files("a-Q8_0.gguf", "b-Q8_0.gguf"))


def test_quantisations_of_one_model_are_a_family() -> None:
    names = {family(choice) for choice in choices(MANY)}
    assert len(names) == 1
    assert family(choices(files("other-Q4_K_M.gguf"))[0]) not in names
