"""Plans and installations inside this process: pins of the catalogue, split models, what is refused before a byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.errors import DownloadError, ModelError, PairError, UsageError
from localspec.machine import Place
from localspec.models.hub import pull
from localspec.models.hub.hub import Hub
from localspec.models.hub.pull import PullPlan, install, make_plan, wishes
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.installed import find
from localspec.models.installed.store import Store
from localspec.models.memory.fit import MARGINS
from tests.hub.conftest import PAIR
from tests.hub.server import LocalHub, sha256
from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, tiny_tensors

ROOM = [Place("CPU", "cpu", 8 << 30, 8 << 30)]


def silent(*state: object) -> None:
    pass


def planned(client: Hub, store: Store, text: str, catalog: Catalog | None = None, **options: str) -> PullPlan:
    return make_plan(wishes(text, client, catalog=catalog, **options), client, store, places=ROOM)


def catalog(tmp_path: Path, **facts: str) -> Catalog:
    """A catalogue of one pair on the local hub; facts go to the target."""
    lines = {"name": "big", "role": "target", "repository": PAIR[0], "file": "tiny-target-Q8_0.gguf"} | facts
    text = "[[model]]\n" + "".join(f'{key} = "{value}"\n' for key, value in lines.items())
    text += f'[[model]]\nname = "small"\nrole = "draft"\nrepository = "{PAIR[1]}"\nquant = "Q8_0"\n'
    text += '[[pair]]\nname = "both"\ntarget = "big"\ndraft = "small"\n'
    path = tmp_path / "models.toml"
    path.write_text(text, encoding="utf-8")
    return Catalog.load(path)


def test_a_pair_of_the_catalogue_is_installed_under_its_names(
    client: Hub, store: Store, local_hub: LocalHub, tmp_path: Path, target_bytes: bytes
) -> None:
    commit = local_hub.repositories[PAIR[0]].commit
    listed = catalog(tmp_path, sha256=sha256(target_bytes), revision=commit, licence="MIT")
    plan = planned(client, store, "both", listed)
    assert local_hub.bytes_sent() <= plan.missing_bytes
    entries = install(plan, client, store, silent)
    assert [(entry.name, entry.role, entry.draft) for entry in entries] == [
        ("big", "target", "small"),
        ("small", "draft", ""),
    ]
    assert (entries[0].revision, entries[0].licence) == (commit, "MIT")
    assert find("both", store, listed) == find("big", store, listed) == (entries[0].path, entries[1].path)
    assert planned(client, store, "both", listed).missing_bytes == 0


def test_a_file_that_is_not_what_the_catalogue_pins_is_refused(client: Hub, store: Store, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not the file the catalogue lists"):
        planned(client, store, "big", catalog(tmp_path, sha256="0" * 64))
    with pytest.raises(DownloadError, match="no such revision"):
        planned(client, store, "big", catalog(tmp_path, revision="0" * 40))
    with pytest.raises(ModelError, match=r"has no file 'gone.gguf' \(any more\)"):
        planned(client, store, "big", catalog(tmp_path, file="gone.gguf"))


def test_a_split_model_is_one_entry(client: Hub, store: Store, local_hub: LocalHub) -> None:
    tensors, parts = tiny_tensors(), {}
    for number, some in enumerate((tensors[:4], tensors[4:])):
        facts = {"split.no": number, "split.count": 2}
        metadata = {**TINY_METADATA, **facts} if number == 0 else facts
        parts[f"Q8_0/m-Q8_0-{number + 1:05d}-of-00002.gguf"] = gguf_bytes(metadata, some)
    local_hub.add("us/split", dict(parts))
    plan = planned(client, store, "us/split:Q8_0")
    assert [len(header.tensors) for header in plan.parts[0].headers] == [4, len(tensors) - 4]
    (entry,) = install(plan, client, store, silent)
    assert [file.path.read_bytes() for file in entry.files] == list(parts.values())
    assert find("us/split", store) == (entry.files[0].path, None)
    assert len(store.remove("us/split:Q8_0")) == 2


def test_a_pair_with_other_tokens_is_refused_before_its_bodies(client: Hub, store: Store, local_hub: LocalHub) -> None:
    other = dict(TINY_METADATA)
    tokens = list(other["tokenizer.ggml.tokens"])
    tokens[100] = "different"
    other["tokenizer.ggml.tokens"] = tokens
    local_hub.add("us/a", {"a-F32.gguf": gguf_bytes()})
    local_hub.add("us/b", {"b-F32.gguf": gguf_bytes(other)})
    with pytest.raises(PairError, match="100"):
        planned(client, store, "us/a", draft="us/b")
    assert planned(client, store, "us/a", draft="us/a").match is not None


def test_what_cannot_generate_text_is_refused(client: Hub, store: Store, local_hub: LocalHub) -> None:
    projector = gguf_bytes({**TINY_METADATA, "general.architecture": "clip"})
    local_hub.add("us/eyes", {"eyes-F16.gguf": projector})
    with pytest.raises(ModelError, match=r"cannot be a target: it is an image projector"):
        planned(client, store, "us/eyes")


def test_the_largest_quantisation_that_fits_memory_is_proposed(
    client: Hub, store: Store, local_hub: LocalHub, target_bytes: bytes
) -> None:
    files = {"m-Q4_K_M.gguf": target_bytes, "m-Q2_K.gguf": gguf_bytes(), "other-Q3_K_M.gguf": gguf_bytes() + b" "}
    local_hub.add("us/quants", files)
    needed = planned(client, store, "us/quants").memory.total_bytes
    narrow = [Place("CPU", "cpu", MARGINS["cpu"] + needed - (1 << 20), 8 << 30)]
    plan = make_plan(wishes("us/quants", client), client, store, places=narrow)
    assert (plan.parts[0].choice.quant, plan.memory.fits) == ("Q2_K", True)
    assert plan.notes[0] == "Q4_K_M does not fit the memory that is free now; Q2_K is the largest that does."
    asked = make_plan(wishes("us/quants:Q4_K_M", client), client, store, places=narrow)
    assert (asked.parts[0].choice.quant, asked.memory.fits) == ("Q4_K_M", False)
    assert asked.notes[0] == "Q2_K would fit: localspec pull us/quants:Q2_K"
    nothing = [Place("CPU", "cpu", 1 << 20, 8 << 30)]
    hopeless = make_plan(wishes("us/quants", client), client, store, places=nothing)
    assert hopeless.notes == ("No quantisation in this repository fits the memory that is free now.",)
    alone = [Place("CPU", "cpu", MARGINS["cpu"] + planned(client, store, PAIR[0]).memory.total_bytes, 8 << 30)]
    (note,) = make_plan(wishes(PAIR[0], client, draft=PAIR[1]), client, store, places=alone).notes
    assert note.endswith(f"beside its draft; the target alone does: localspec pull {PAIR[0]}:Q8_0")


def test_no_room_on_the_disk_stops_it(
    client: Hub, store: Store, local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "SPARE_DISK", 1 << 60)
    with pytest.raises(DownloadError, match=r"There is no room: 6\.3 MB to load"):
        install(planned(client, store, PAIR[0]), client, store, silent)
    assert not client.cache.exists()
    assert store.entries() == []


def test_a_body_that_is_not_what_its_header_was_is_not_listed(client: Hub, store: Store, local_hub: LocalHub) -> None:
    data = gguf_bytes()
    local_hub.add("us/liar", {"m-F32.gguf": data})
    plan = planned(client, store, "us/liar")
    local_hub.blobs[sha256(data)] = (b"not a model" * 100_000)[: len(data)]
    with pytest.raises(DownloadError, match="wrong bytes"):
        install(plan, client, store, silent)
    assert store.entries() == []


def test_a_renamed_file_and_another_branch(client: Hub, store: Store, local_hub: LocalHub, target_bytes: bytes) -> None:
    local_hub.add(PAIR[0], {"renamed-Q8_0.gguf": target_bytes}, branches=("main", "v1"))
    with pytest.raises(ModelError, match=r"has no file 'tiny-target-Q8_0.gguf' \(any more\)") as caught:
        planned(client, store, f"{PAIR[0]}/tiny-target-Q8_0.gguf")
    assert caught.value.hint == "It has: Q8_0 (6.3 MB)."
    (first,) = install(planned(client, store, PAIR[0]), client, store, silent)
    (again,) = install(planned(client, store, PAIR[0], revision="v1"), client, store, silent)
    assert first.path == again.path
    with pytest.raises(DownloadError, match="no such revision"):
        planned(client, store, PAIR[0], revision="v2")


def test_names_that_lead_nowhere(client: Hub, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'x' is no model or pair"):
        wishes("x", client)
    with pytest.raises(ModelError, match="is shipped with localspec"):
        wishes("tiny", client)
    with pytest.raises(UsageError, match="has no revisions"):
        wishes("https://example.org/x.gguf", client, revision="v1")
    (wish,) = wishes(f"{client.endpoint}/u/r/blob/v2/x.gguf", client)
    assert wish.revision == "v2"
