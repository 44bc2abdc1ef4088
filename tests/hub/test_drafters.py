"""Drafters found by `pull`: in layouts as published, from headers alone, with a line for every file that was left."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localspec.gguf import read_header
from localspec.machine import Place
from localspec.models.facts.heads import draft_kind
from localspec.models.hub import pull
from localspec.models.hub.hub import Hub
from localspec.models.hub.pull import PullPlan, install, make_plan, wishes
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.installed import find
from localspec.models.installed.store import Store
from localspec.models.memory.fit import MARGINS
from tests.drafters.dflash_files import head as block_head
from tests.drafters.shipped_heads import SHIPPED
from tests.hub.conftest import Inside, Program
from tests.hub.published import assistant, dflash, dspark, eagle3, model, mtp, split_model
from tests.hub.server import LocalHub, sha256

ROOM = [Place("CPU", "cpu", 8 << 30, 8 << 30)]
REPOSITORY = "maker/model-GGUF"
EYES = {"mmproj-model-BF16.gguf": b"GGUF", "README.md": b"# model"}


def planned(client: Hub, store: Store, text: str, catalog: str = "", room: list[Place] = ROOM) -> PullPlan:
    listed = Catalog({}, {})
    if catalog:
        path = store.folder / "models.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(catalog, encoding="utf-8")
        listed = Catalog.load(path)
    return make_plan(wishes(text, client, catalog=listed), client, store, places=room, catalog=listed)


def quants(name: str, *quantisations: str) -> dict[str, bytes]:
    """A model in several quantisations."""
    return {f"{name}-{quant}.gguf": model(seed=seed) for seed, quant in enumerate(quantisations)}


@dataclass(frozen=True, repr=False)
class Layout:
    """A repository as its like is published, and what comes of pulling it."""

    of: str
    """Whose repositories look so."""
    files: Mapping[str, bytes]
    quant: str
    loads: tuple[str, ...]
    """Names of the files that are fetched."""
    lines: tuple[str, ...] = field(default=())
    """What is said of drafters: the start of each line, and words in it after dots."""


LAYOUTS = [
    Layout(
        "unsloth/Qwen3.8-27B-GGUF: MTP inside, a DFlash file beside",
        {"model-UD-Q4_K_XL.gguf": model(nextn=1), "dflash-model-Q8_0.gguf": dflash()} | EYES,
        "UD-Q4_K_XL",
        ("model-UD-Q4_K_XL.gguf",),
        ("model-UD-Q4_K_XL.gguf taken: 1 layer(s) of multi-token prediction inside, nothing to fetch",
         "dflash-model-Q8_0.gguf ... not taken: mtp comes first"),
    ),
    Layout(
        "ggml-org/gemma-4-31B-it-GGUF: all in one folder",
        quants("model", "BF16", "Q4_K_M", "Q8_0") | EYES
        | {f"mtp-model-{quant}.gguf": mtp(seed=seed) for seed, quant in enumerate(("BF16", "Q4_0", "Q8_0"))}
        | {"eagle3-model-Q8_0.gguf": eagle3()},
        "Q8_0",
        ("model-Q8_0.gguf", "mtp-model-Q8_0.gguf"),
        ("mtp-model-Q8_0.gguf ... taken: a multi-token-prediction head ... the best of 3 quantisations",
         "eagle3-model-Q8_0.gguf ... not taken: mtp comes first"),
    ),
    Layout(
        "ggml-org/Qwen3.6-27B-GGUF: the head has no file of the model's quantisation",
        quants("model", "BF16", "Q4_K_M") | {f"mtp-model-{quant}.gguf": mtp() for quant in ("BF16", "Q4_0", "Q8_0")},
        "Q4_K_M",
        ("model-Q4_K_M.gguf", "mtp-model-Q8_0.gguf"),
        ("mtp-model-Q8_0.gguf ... taken",),
    ),
    Layout(
        "stepfun-ai/Step-3.7-Flash-GGUF: quantisations in folders, heads above them",
        {f"Q3_K_M/{name}": data for name, data in split_model("model-Q3_K_M", 3).items()}
        | {"model-mtp-BF16.gguf": mtp(), "model-mtp-Q8_0.gguf": mtp(seed=1)},
        "Q3_K_M",
        (*(f"Q3_K_M/model-Q3_K_M-{part:05d}-of-00003.gguf" for part in (1, 2, 3)), "model-mtp-Q8_0.gguf"),
        ("model-mtp-Q8_0.gguf ... taken",),
    ),
    Layout(
        "a head by its suffix in capitals, of one quantisation",
        {"model-UD-Q8_K_XL.gguf": model(), "model-MTP-BF16.gguf": mtp()} | EYES,
        "",
        ("model-UD-Q8_K_XL.gguf", "model-MTP-BF16.gguf"),
        ("model-MTP-BF16.gguf ... taken: a multi-token-prediction head (MTP, NextN), beside the model",),
    ),
    Layout(
        "layers of MTP alone, under a free name",
        {"model-Q6_K.gguf": model(), "model-MTP-ONLY-Q6_K.gguf": mtp()},
        "Q6_K",
        ("model-Q6_K.gguf", "model-MTP-ONLY-Q6_K.gguf"),
        ("model-MTP-ONLY-Q6_K.gguf ... taken",),
    ),
    Layout(
        "ggml-org/Qwen3.6-35B-A3B-MTP-GGUF: whole models with MTP inside, and in their names",
        {f"model-A3B-MTP-{quant}.gguf": model(nextn=1, seed=seed) for seed, quant in enumerate(("Q4_K_M", "Q8_0"))},
        "Q8_0",
        ("model-A3B-MTP-Q8_0.gguf",),
        ("model-A3B-MTP-Q8_0.gguf taken: 1 layer(s) of multi-token prediction inside",),
    ),
    Layout(
        "Muse-Glimmer-30B: a DFlash file without the model's name",
        {"model-Q4_K_M.gguf": model(), "dflash-kquant.gguf": dflash(own__attention__causal=False)},
        "",
        ("model-Q4_K_M.gguf", "dflash-kquant.gguf"),
        ("dflash-kquant.gguf ... taken: a DFlash head of blocks of 8, beside the model",),
    ),
    Layout(
        "every kind at once",
        {"model-Q8_0.gguf": model(), "mtp-model-Q8_0.gguf": mtp(), "dflash-model-Q8_0.gguf": dflash()}
        | {"eagle3-model-Q8_0.gguf": eagle3(), "dspark-model-Q8_0.gguf": dspark()},
        "Q8_0",
        ("model-Q8_0.gguf", "dspark-model-Q8_0.gguf"),
        ("dspark-model-Q8_0.gguf ... taken: a DSpark head of blocks of 7",
         "mtp-model-Q8_0.gguf ... not taken: dspark comes first",
         "dflash-model-Q8_0.gguf ... not taken: dspark comes first (localspec pull",
         "eagle3-model-Q8_0.gguf ... not taken: dspark comes first"),
    ),
    Layout(
        "a mixture of experts: MTP first, whose passes are narrow",
        {"model-Q8_0.gguf": model(own__expert_count=8), "mtp-model-Q8_0.gguf": mtp()}
        | {"dspark-model-Q8_0.gguf": dspark()},
        "Q8_0",
        ("model-Q8_0.gguf", "mtp-model-Q8_0.gguf"),
        ("mtp-model-Q8_0.gguf ... taken", "dspark-model-Q8_0.gguf ... not taken: mtp comes first"),
    ),
    Layout(
        "unsloth/gemma-4-31B-it-GGUF: an assistant in a folder for drafters",
        {"model-Q4_0.gguf": model(architecture="gemma4"), "MTP/mtp-model.gguf": assistant()},
        "Q4_0",
        ("model-Q4_0.gguf", "MTP/mtp-model.gguf"),
        ("MTP/mtp-model.gguf ... taken: an assistant head (gemma4-assistant)",),
    ),
    Layout(
        "a folder for drafters, whose files are called as the model is",
        {"model-Q8_0.gguf": model(), "model-Q4_K_M.gguf": model(seed=1), "MTP/model-Q8_0.gguf": mtp()},
        "Q8_0",
        ("model-Q8_0.gguf", "MTP/model-Q8_0.gguf"),
        ("MTP/model-Q8_0.gguf ... taken",),
    ),
    Layout(
        "an EAGLE-3 head alone, with a whole model that is called a drafter",
        {"model-Q8_0.gguf": model(), "eagle3-model-F16.gguf": eagle3(), "model-assistant-Q8_0.gguf": model(seed=5)},
        "Q8_0",
        ("model-Q8_0.gguf", "eagle3-model-F16.gguf"),
        ("model-assistant-Q8_0.gguf ... not taken: it is a whole model, no head",
         "eagle3-model-F16.gguf ... taken: an EAGLE-3 head, beside the model"),
    ),
    Layout(
        "two models in one repository, each in its folder",
        {"a/a-Q8_0.gguf": model(), "a/mtp-a-Q8_0.gguf": mtp()}
        | {"b/b-Q4_0.gguf": model(layers=2), "b/mtp-b-Q8_0.gguf": mtp(layers=2)},
        "Q4_0",
        ("b/b-Q4_0.gguf", "b/mtp-b-Q8_0.gguf"),
        ("b/mtp-b-Q8_0.gguf ... taken", "a/mtp-a-Q8_0.gguf ... not taken: it lies in another folder (localspec pull"),
    ),
    Layout(
        "two sizes in one folder: the header tells whose the head is",
        {"big-Q8_0.gguf": model(layers=6), "small-Q4_0.gguf": model(layers=2)}
        | {"mtp-big-Q8_0.gguf": mtp(layers=6), "mtp-small-Q8_0.gguf": mtp(layers=2)},
        "Q4_0",
        ("small-Q4_0.gguf", "mtp-small-Q8_0.gguf"),
        ("mtp-small-Q8_0.gguf ... taken", "mtp-big-Q8_0.gguf ... not taken: mtp comes first"),
    ),
    Layout(
        "a head of three bits",
        {"model-Q2_K.gguf": model(), "mtp-model-Q3_K_M.gguf": mtp()},
        "Q2_K",
        ("model-Q2_K.gguf",),
        ("mtp-model-Q3_K_M.gguf ... not taken: Q3_K_M is too coarse for a head (localspec pull",),
    ),
]  # fmt: skip


def agrees(line: str, start: str) -> bool:
    """Whether a line starts with words, and holds the others in their order."""
    first, *rest = start.split(" ... ")
    at = len(first) if line.startswith(first) else -1
    for words in rest:
        at = line.find(words, at) if at >= 0 else -1
    return at >= 0


@pytest.mark.parametrize("layout", LAYOUTS, ids=[layout.of for layout in LAYOUTS])
def test_a_published_layout(client: Hub, store: Store, local_hub: LocalHub, layout: Layout) -> None:
    local_hub.add(REPOSITORY, dict(layout.files))
    plan = planned(client, store, f"{REPOSITORY}:{layout.quant}" if layout.quant else REPOSITORY)
    assert tuple(file.name for part in plan.parts for file in part.choice.files) == layout.loads
    said = [one.line() for one in plan.drafters]
    assert len(said) == len(layout.lines), said
    for line, start in zip(said, layout.lines, strict=True):
        assert agrees(line, start), line
        assert "\n" not in line
    assert not client.cache.exists(), "only headers were read"
    entries = install(plan, client, store, lambda *state: None)
    assert (entries[0].draft == entries[-1].name) == plan.is_pair
    assert [file.path.name for entry in entries for file in entry.files] == [
        name.split("/")[-1] for name in layout.loads
    ]
    found = find(plan.parts[0].name, store, Catalog({}, {}))
    assert found == find(REPOSITORY, store, Catalog({}, {}))
    assert found == (entries[0].path, entries[1].path if plan.is_pair else None)


WRONG: dict[str, tuple[str, bytes]] = {
    "hidden size is 32 in the target and 64 in the draft model": ("eagle3", eagle3(own__target_hidden_size=64)),
    "hidden size is 32 in the target and 48 in the draft model": ("dspark", dspark(own__embedding_length=48)),
    "number of layers is 4 in the target and made for one with at least 5": (
        "dflash",
        dflash(own__target_layers=[1, 2, 4]),
    ),
    "architecture is llama in the target and gemma4 in the head": ("mtp", assistant()),
    "in the format of a fork of llama.cpp (dflash-draft)": ("dflash", model(architecture="dflash-draft")),
    "number of layers is 4 in the target": ("eagle3", eagle3(own__target_layers=[1, 2, 9])),
    "number of layers is 4 in the target and 7 in the head": ("mtp", mtp(layers=7)),
    "hidden size is 32": ("mtp", mtp(own__embedding_length_out=48)),
    "eos is 2 in the target and 9 in the draft model": ("mtp", mtp(tokenizer__ggml__eos_token_id=9)),
    "token 5 is ": ("mtp", mtp(tokenizer__ggml__tokens=["a"] * 260)),
    "architecture is llama in the target and glm4moe in the head": ("mtp", mtp(architecture="glm4moe")),
    "is truncated": ("mtp", mtp()[:3000]),
    "is not a GGUF file": ("mtp", b"<html>" * 1000),
}
"""What is said of a head -> the kind that its name says, and its file."""


@pytest.mark.parametrize("words", WRONG)
def test_a_head_for_another_model_is_refused_from_its_header(
    client: Hub, store: Store, local_hub: LocalHub, words: str
) -> None:
    kind, data = WRONG[words]
    padded = data + bytes(8 << 20) if len(data) > 6000 else data
    local_hub.add(REPOSITORY, {"model-Q8_0.gguf": model(), f"{kind}-model-Q8_0.gguf": padded})
    plan = planned(client, store, REPOSITORY)
    (finding,) = plan.drafters
    assert not plan.is_pair
    assert (finding.taken, finding.command) == (False, "")
    assert words in finding.why
    assert local_hub.sent[sha256(padded)] <= 3 << 20, "its header and its tokens"
    assert not client.cache.exists()


def test_a_mismatched_head_gives_way_to_the_next(client: Hub, store: Store, local_hub: LocalHub) -> None:
    files = {"mtp-model-Q8_0.gguf": mtp(layers=9), "eagle3-model-Q8_0.gguf": eagle3()}
    local_hub.add(REPOSITORY, {"model-Q8_0.gguf": model()} | files)
    plan = planned(client, store, REPOSITORY)
    assert [(one.method, one.taken) for one in plan.drafters] == [("mtp", False), ("eagle3", True)]
    assert plan.match is not None
    assert plan.match.method == "eagle3"


def test_no_more_headers_are_read_than_promised(client: Hub, store: Store, local_hub: LocalHub) -> None:
    wrong = {f"mtp-{letter}-Q8_0.gguf": mtp(layers=9, seed=number) for number, letter in enumerate("abcdefgh")}
    local_hub.add(REPOSITORY, {"model-Q8_0.gguf": model()} | wrong)
    plan = planned(client, store, REPOSITORY)
    read = {sha256(data) for data in wrong.values() if any(sha256(data) in seen.path for seen in local_hub.seen)}
    assert len(read) == pull._MOST_READ
    assert [one.why for one in plan.drafters[len(read) :]] == ["6 others were read"] * 2


def test_a_recurrent_model_that_takes_nothing_back_gets_no_head(client: Hub, store: Store, local_hub: LocalHub) -> None:
    jamba = partial(model, architecture="jamba", own__ssm__state_size=16)
    for files in ({"m-Q8_0.gguf": jamba(), "eagle3-m-Q8_0.gguf": eagle3()}, {"m-Q8_0.gguf": jamba(nextn=1)}):
        local_hub.add(REPOSITORY, files)
        plan = planned(client, store, REPOSITORY)
        (finding,) = plan.drafters
        assert finding.line().startswith("m-Q8_0.gguf not taken: the model keeps a recurrent state (jamba)")
        assert not plan.is_pair


def test_what_memory_or_disk_has_no_room_for_is_not_taken(
    client: Hub, store: Store, local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_hub.add(REPOSITORY, {"model-Q8_0.gguf": model(), "mtp-model-Q8_0.gguf": mtp()})
    alone = make_plan(wishes(REPOSITORY, client), client, store, places=ROOM)
    assert alone.drafters == ()
    narrow = [Place("CPU", "cpu", MARGINS["cpu"] + alone.memory.total_bytes, 8 << 30)]
    plan = planned(client, store, REPOSITORY, room=narrow)
    (finding,) = plan.drafters
    assert (plan.is_pair, plan.memory.fits, finding.taken) == (False, True, False)
    assert "does not fit the memory" in finding.why
    assert finding.command == f"localspec pull {REPOSITORY}:Q8_0 --draft {REPOSITORY}/mtp-model-Q8_0.gguf"
    asked = wishes(f"{REPOSITORY}:Q8_0", client, draft=f"{REPOSITORY}/mtp-model-Q8_0.gguf")
    assert make_plan(asked, client, store, places=ROOM).is_pair
    monkeypatch.setattr("localspec.models.hub.pull.SPARE_DISK", 1 << 60)
    (finding,) = planned(client, store, REPOSITORY).drafters
    assert finding.why.startswith("the disk has no room for it in")


# -- the catalogue ---------------------------------------------------------------------------------------------------

OWN, ADDRESS = "maker/model-DSpark-GGUF", "https://huggingface.co/Qwen/model"
LISTED = """
[[model]]
name = "the-model"
role = "target"
repository = "maker/model-GGUF"
quant = "Q8_0"

[[model]]
name = "the-head"
role = "head"
repository = "{head}"
quant = "F16"
bytes = 4_000

[[pair]]
name = "the-pair"
target = "the-model"
draft = "the-head"
method = "{method}"
"""


def listed(head: str, method: str = "eagle3") -> str:
    return LISTED.format(head=head, method=method)


@pytest.mark.parametrize(
    ("model_in", "head_in", "tags", "facts", "taken"),
    [
        ("LiquidAI/model-GGUF", "LiquidAI/model-head-GGUF", (), {}, True),
        ("unsloth/model-GGUF", "LiquidAI/model-head-GGUF", ("base_model:quantized:LiquidAI/model",), {}, True),
        ("unsloth/model-GGUF", "deepseek-ai/head", (), {"general__base_model__0__organization": "Deepseek Ai"}, True),
        ("unsloth/model-GGUF", "Qwen/head", (), {"general__base_model__0__repo_url": ADDRESS}, True),
        ("unsloth/model-GGUF", "incoai/model-DFlash2-GGUF", ("base_model:LiquidAI/model",), {}, False),
        ("unsloth/model-GGUF", "incoai/model-DFlash2-GGUF", (), {}, False),
    ],
)  # fmt: skip
def test_a_head_of_the_catalogue(
    client: Hub,
    store: Store,
    local_hub: LocalHub,
    model_in: str,
    head_in: str,
    tags: tuple[str, ...],
    facts: dict[str, Any],
    taken: bool,
) -> None:
    """From the same owner or the maker it is taken, from another it is proposed; whichever quantisation is pulled."""
    local_hub.add(model_in, {"model-Q5_K_M.gguf": model(**facts)}, tags=("gguf", *tags))
    local_hub.add(head_in, {"head-F16.gguf": eagle3()})
    plan = planned(client, store, model_in, listed(head_in))
    (finding,) = plan.drafters
    assert (finding.taken, plan.is_pair) == (taken, taken)
    assert finding.command == f"localspec pull {model_in}:Q5_K_M --draft the-head"
    if taken:
        assert finding.line().startswith("the-head (")
        assert finding.why.startswith(f"an EAGLE-3 head, of the catalogue, from {head_in}, ")
        assert finding.why.endswith(" more memory")
        entries = install(plan, client, store, lambda *state: None)
        assert find(model_in, store, Catalog({}, {})) == (entries[0].path, entries[1].path)
        assert (entries[1].name, entries[1].role) == ("the-head", "head")
    else:
        assert finding.line().endswith(f"({finding.command})")
        assert not any(head_in in seen.path for seen in local_hub.seen), "not even asked for"


def test_the_catalogue_comes_after_what_lies_beside(client: Hub, store: Store, local_hub: LocalHub) -> None:
    local_hub.add(REPOSITORY, {"model-Q8_0.gguf": model(), "mtp-model-Q8_0.gguf": mtp()})
    local_hub.add(OWN, {"head-F16.gguf": eagle3()})
    plan = planned(client, store, REPOSITORY, listed(OWN))
    assert [(one.name, one.taken) for one in plan.drafters] == [("mtp-model-Q8_0.gguf", True), ("the-head", False)]
    assert plan.drafters[1].why == "mtp comes first"
    assert not any(OWN in seen.path for seen in local_hub.seen)
    local_hub.add(REPOSITORY, {"model-Q8_0.gguf": model(), "mtp-model-Q8_0.gguf": mtp(layers=9)})
    plan = planned(client, store, REPOSITORY, listed(OWN))
    assert [(one.name, one.taken) for one in plan.drafters] == [("mtp-model-Q8_0.gguf", False), ("the-head", True)]


def test_a_plain_address_gets_proposals_alone(client: Hub, store: Store, local_hub: LocalHub) -> None:
    """What lies beside it cannot be listed, and whose it is is not known."""
    data = model()
    local_hub.add(REPOSITORY, {"model-Q8_0.gguf": data, "mtp-model-Q8_0.gguf": mtp()})
    url = f"{local_hub.content_url}/{sha256(data)}/model-Q8_0.gguf"
    plan = planned(client, store, url, listed(OWN))
    (finding,) = plan.drafters
    assert (finding.name, finding.taken, plan.is_pair) == ("the-head", False, False)
    assert finding.command == f"localspec pull {url} --draft the-head"


def test_a_head_of_the_catalogue_that_cannot_be_used(client: Hub, store: Store, local_hub: LocalHub) -> None:
    local_hub.add(REPOSITORY, {"model-Q8_0.gguf": model()})
    (finding,) = planned(client, store, REPOSITORY, listed(OWN)).drafters
    assert finding.why.startswith("127.0.0.1")
    assert f"shows no repository '{OWN}'" in finding.why
    local_hub.add(OWN, {"head-F16.gguf": eagle3(own__target_hidden_size=64)})
    (finding,) = planned(client, store, REPOSITORY, listed(OWN)).drafters
    assert "hidden size is 32 in the target and 64" in finding.why


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("eagle3", "eagle3-tiny-Q8_0.gguf  taken: an EAGLE-3 head, beside the model"),
        ("dspark", "dspark-tiny-Q8_0.gguf  taken: a DSpark head of blocks of 8, beside the model"),
        ("mtp", "tiny-Q8_0.gguf taken: 1 layer(s) of multi-token prediction inside, nothing to fetch"),
    ],
)
def test_what_was_found_drafts_in_an_answer(
    program: Program, local_hub: LocalHub, tiny_target: Path, tmp_path: Path, method: str, words: str
) -> None:
    """The whole way: said before anything is fetched, remembered, and drafting."""
    files = {"tiny-Q8_0.gguf": tiny_target.read_bytes()}
    if method == "mtp":
        files = {"tiny-Q8_0.gguf": SHIPPED["mtp"].read_bytes()}
    elif method == "eagle3":
        files["eagle3-tiny-Q8_0.gguf"] = SHIPPED["eagle3"].read_bytes()
    else:
        made, _ = block_head(tmp_path / "head.gguf", tiny_target, method)
        files[f"{method}-tiny-Q8_0.gguf"] = made.read_bytes()
    local_hub.add("us/headed-GGUF", files)
    done = program("pull", "us/headed-GGUF", "-y")
    assert done.code == 0, done.err
    (line,) = (line for line in done.out.splitlines() if line.startswith("drafter"))
    assert re.sub(r"\(\d.*?B\)|, \d.*? more memory", "", line) == f"drafter {words}"
    short = ("Count: one two", "--max-tokens", "12", "--seed", "1", "--exact", "off", "--json", "--drafter", method)
    answer = program("run", "us/headed-GGUF", *short)
    assert answer.code == 0, answer.err
    assert answer.data["stats"]["drafted_by_drafter"][method] > 0


def test_a_head_goes_with_its_model(inside: Inside, local_hub: LocalHub, target_bytes: bytes) -> None:
    head = SHIPPED["eagle3"].read_bytes()
    files = {"tiny-Q8_0.gguf": target_bytes, "tiny-F16.gguf": target_bytes, "eagle3-tiny-Q8_0.gguf": head}
    local_hub.add("us/headed-GGUF", files)
    for quant in ("Q8_0", "F16"):
        assert inside("pull", f"us/headed-GGUF:{quant}", "-y").code == 0
    assert len(inside.store.entries()) == 3
    assert inside("rm", "us/headed-GGUF:F16").code == 0
    assert [entry.role for entry in inside.store.entries()] == ["head", "target"]
    assert inside("rm", "us/headed-GGUF").code == 0
    assert inside.store.entries() == []


def test_no_draft_looks_for_none(inside: Inside, local_hub: LocalHub) -> None:
    local_hub.add(REPOSITORY, {"model-Q8_0.gguf": model(), "eagle3-model-Q8_0.gguf": eagle3(general__seed=77)})
    plan = inside("pull", REPOSITORY, "--no-draft", "--dry-run", "--json").data["plan"]
    assert (len(plan["parts"]), plan["drafters"], plan["suggestions"]) == (1, [], [])
    assert not any(sha256(eagle3(general__seed=77)) in seen.path for seen in local_hub.seen)
    plan = inside("pull", REPOSITORY, "--dry-run", "--json").data["plan"]
    assert [(one["name"], one["method"], one["taken"]) for one in plan["drafters"]] == [
        ("eagle3-model-Q8_0.gguf", "eagle3", True)
    ]
    both = inside("pull", REPOSITORY, "--no-draft", "--draft", "x/y")
    assert both.code == 2
    assert "--no-draft and --draft x/y exclude each other" in both.err


def test_a_head_that_does_not_load_is_not_remembered(inside: Inside, local_hub: LocalHub) -> None:
    """This llama has heads of random sizes that its drafter refuses once it reads the file."""
    local_hub.add(REPOSITORY, {"model-Q8_0.gguf": model(), "eagle3-model-Q8_0.gguf": eagle3()})
    done = inside("pull", REPOSITORY, "-y")
    assert done.code == 0, done.err
    names = [(entry.name, entry.draft) for entry in inside.store.entries()]
    assert names == [(f"{REPOSITORY}/eagle3-model-Q8_0.gguf", ""), (f"{REPOSITORY}:Q8_0", "")]


def test_what_llama_cpp_cannot_run_is_not_fetched(inside: Inside, local_hub: LocalHub) -> None:
    """By the architectures: layers of MTP of this one, and what goes into another's layers."""
    phi = model(architecture="phi3")
    for files, why in (
        ({"model-Q8_0.gguf": model(), "mtp-model-Q8_0.gguf": mtp()}, "1 multi-token-prediction layers of the"),
        ({"model-Q8_0.gguf": model(nextn=1)}, "1 multi-token-prediction layers of the architecture llama"),
        (
            {"model-Q8_0.gguf": phi, "dspark-model-Q8_0.gguf": dspark()},
            "what goes into layers of the architecture phi3",
        ),
    ):
        local_hub.add(REPOSITORY, files)
        (finding,) = inside("pull", REPOSITORY, "--dry-run", "--json").data["plan"]["drafters"]
        assert not finding["taken"]
        assert why in finding["why"]


def test_offline_finds_what_is_in_the_cache(inside: Inside, local_hub: LocalHub) -> None:
    local_hub.add(REPOSITORY, {"model-Q8_0.gguf": model(), "eagle3-model-Q8_0.gguf": eagle3()})
    assert inside("pull", REPOSITORY, "-y").code == 0
    local_hub.reset()
    plan = inside("pull", REPOSITORY, "--offline", "--dry-run", "--json").data["plan"]
    assert [one["taken"] for one in plan["drafters"]] == [True]
    assert plan["missing_bytes"] == 0
    assert local_hub.seen == []


def test_published_files_say_what_they_are(tmp_path: Path) -> None:
    """The files of these tests are what their names say, so that a layout tests what it claims to."""
    for make in (dflash, dspark, eagle3, assistant, mtp):
        file = tmp_path / f"{make.__name__}.gguf"
        file.write_bytes(make())
        assert draft_kind(read_header(file)).method == make.__name__
