"""The cache knows its tokens: whatever it held before, the next rows are those of a fresh context, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from localspec.errors import Cancelled, ContextOverflowError, UsageError
from localspec.llama.cache.context import Context
from localspec.llama.exact import wide
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.types import Feed, Float32Array, Tokens
from tests.llama.conftest import MakeContext, chain, same_bits
from tests.llama.tiny_gguf import MAMBA_METADATA, MAMBA_TENSORS, gguf_bytes, write


def last_row(context: Context, tokens: Tokens, prompt_length: int | None = None, slot: int = 0) -> Float32Array:
    length = len(tokens) if prompt_length is None else prompt_length
    row: Float32Array = context.decode([Feed(slot, tokens, length)])[0][0].copy()
    return row


def plain_rows(context: Context, prompt: Tokens, after: Tokens, slot: int = 0) -> list[Float32Array]:
    """Rows behind the prompt and behind each token of `after`, decoded one by one."""
    tokens = [np.concatenate([prompt, after[:count]]) for count in range(len(after) + 1)]
    return [last_row(context, history, len(prompt), slot) for history in tokens]


@pytest.mark.parametrize(("length", "threads"), [(100, 1), (600, 1), (600, 2)])
def test_chain_rows_are_those_of_plain_decoding(make: MakeContext, text: Tokens, length: int, threads: int) -> None:
    prompt, after = text[:length], text[length : length + 6]
    context = make(threads=threads)
    expected = plain_rows(context, prompt, after)
    for width in (2, 4, 7):
        draft = after[: width - 1]
        context.forget(0, length - 1)
        rows = context.decode([Feed(0, prompt, length, draft, chain(width - 1))])[0]
        assert len(rows) == width
        assert all(same_bits(rows[i], expected[i]) for i in range(width))


def test_rejected_draft_leaves_no_trace(make: MakeContext, text: Tokens) -> None:
    prompt, after = text[:250], text[250:258]
    expected = plain_rows(make(), prompt, after)
    context = make()
    for count in range(8):
        history = np.concatenate([prompt, after[:count]])
        wrong = text[600 : 600 + 5]
        row = context.decode([Feed(0, history, 250, wrong, chain(5))])[0][0]
        assert same_bits(row, expected[count])


@pytest.mark.skipif(not wide.available(), reason="llama.cpp's own memory stays")
def test_memory_of_unused_cells_is_given_back(make: MakeContext, text: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a long history was dropped, and after another slot's was copied with all its cells."""
    given: list[tuple[int, int, bool]] = []
    give_back = wide.give_back

    def seen(context: int, slot: int, cell: int, turned: bool) -> int:
        found = give_back(context, slot, cell, turned)
        given.append((slot, cell, found > 0))
        return found

    monkeypatch.setattr(wide, "give_back", seen)
    expected = last_row(make(n_ctx=4096, n_slots=2), text[:60])
    context = make(n_ctx=4096, n_slots=2)
    context.reuse_all()
    last_row(context, text)
    assert same_bits(last_row(context, text[:60]), expected)
    assert given == [(0, 59, True)]
    last_row(context, text[:600])
    assert context.copy_prefix(1, text[:580], 580) == 579
    assert same_bits(last_row(context, text[:60], slot=1), expected)
    assert same_bits(last_row(context, text[:90], slot=1), last_row(make(n_ctx=4096, n_slots=2), text[:90]))
    assert [one for one in given if one[0] == 1] == [(1, 60, True)]


def test_a_launched_pass_is_collected_later(make: MakeContext, text: Tokens) -> None:
    """Passes of two contexts are under way at once; what is collected is what `decode` gives."""
    feeds = [Feed(0, text[: 90 + one], 90, text[300:303], chain(3)) for one in range(2)]
    expected = [make().decode([feed])[0] for feed in feeds]
    contexts = [make(), make()]
    for context, feed in zip(contexts, feeds, strict=True):
        context.launch([feed])
    for context, feed, wanted in zip(contexts, feeds, expected, strict=True):
        (rows,) = context.collect()
        assert len(rows) == 4
        assert all(same_bits(rows[index], wanted[index]) for index in range(4))
        assert context.cached(0) == len(feed.tokens) + 3
        assert context.collect() == [], "it was collected"


@pytest.mark.parametrize("length", [100, 252, 600])
def test_tree_rows_are_those_of_plain_decoding(make: MakeContext, text: Tokens, length: int) -> None:
    """The true chain as main chain, as side branch, and forking in the middle."""
    prompt, true, wrong = text[:length], text[length : length + 3], text[900:906]
    expected = plain_rows(make(), prompt, true)
    shapes: list[tuple[list[int], list[int], list[int]]] = [
        ([*true, *wrong[:3]], [-1, 0, 1, -1, 3, 4], [0, 1, 2]),
        ([*wrong[:3], *true], [-1, 0, 1, -1, 3, 4], [3, 4, 5]),
        ([true[0], wrong[0], true[1], wrong[1], true[2]], [-1, 0, 0, 2, 2], [0, 2, 4]),
        ([wrong[0], true[0], wrong[1], wrong[2], true[1]], [-1, -1, -1, 0, 1], [1, 4]),
    ]
    for tokens, parents, path in shapes:
        context = make(max_leaves=4)
        nodes = np.array(tokens, dtype=np.int32)
        rows = context.decode([Feed(0, prompt, length, nodes, np.array(parents, dtype=np.int32))])[0]
        assert same_bits(rows[0], expected[0])
        for depth, node in enumerate(path):
            assert same_bits(rows[1 + node], expected[1 + depth]), (tokens, node)


@pytest.mark.parametrize("true_first", [True, False])
def test_after_a_tree_the_next_pass_is_exact(make: MakeContext, text: Tokens, true_first: bool) -> None:
    """An accepted main chain is kept; accepted siblings join the next pass as rows."""
    prompt, true, wrong = text[:251], text[251:260], text[900:903]
    expected = plain_rows(make(), prompt, true)
    context = make(max_leaves=3)
    first, second = (true[:3], wrong) if true_first else (wrong, true[:3])
    nodes = np.concatenate([first, second])
    for _ in range(2):
        context.decode([Feed(0, prompt, 251, nodes, np.array([-1, 0, 1, -1, 3, 4], dtype=np.int32))])
        history = np.concatenate([prompt, true[:4]])
        assert context.pending(0, history) == (1 if true_first else 4)
        rows = context.decode([Feed(0, history, 251, true[4:6], chain(2))])[0]
        assert [same_bits(rows[i], expected[4 + i]) for i in range(3)] == [True] * 3
        again = np.array([wrong[0], true[4], true[5]], dtype=np.int32)
        rows = context.decode([Feed(0, history, 251, again, np.array([-1, -1, 1], dtype=np.int32))])[0]
        assert same_bits(rows[2], expected[5])
        assert same_bits(rows[3], expected[6])


@pytest.mark.parametrize("length", [40, 300])
def test_slots_come_and_go_without_a_trace(make: MakeContext, text: Tokens, length: int) -> None:
    after = text[length : length + 6]
    expected = plain_rows(make(), text[:length], after)
    context = make(n_slots=3)
    for count in range(6):
        history = np.concatenate([text[:length], after[:count]])
        feeds = [Feed(1, history, length, after[count : count + 1], chain(1))]
        if count % 2:
            feeds.append(Feed(0, text[400 : 450 + count], 50, text[500:501], chain(1)))
        if count > 3:
            feeds.append(Feed(2, text[700 : 720 + count], 20, text[500:501], chain(1)))
        rows = context.decode(feeds)
        assert same_bits(rows[0][0], expected[count])
        assert same_bits(rows[0][1], expected[count + 1])
        if count == 4:
            context.forget(0)


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda tokens: tokens[:300], id="shrink"),
        pytest.param(lambda tokens: tokens[:700], id="extend"),
        pytest.param(lambda tokens: np.concatenate([tokens[:200], tokens[201:600]]), id="edit"),
        pytest.param(lambda tokens: tokens[1:50], id="other"),
    ],
)
def test_strict_reuse_equals_a_fresh_context(make: MakeContext, text: Tokens, edit: object) -> None:
    """Whatever was served before, with reuse "chunks" the rows are those of a fresh context."""
    assert callable(edit)
    context = make(reuse="chunks", grid=128)
    first = text[:600]
    plain_rows(context, first, text[800:804])
    second = np.ascontiguousarray(edit(text))
    expected = plain_rows(make(reuse="chunks", grid=128), second, text[850:853])
    assert context.reusable(0, second, len(second)) % 128 == 0
    for row, wanted in zip(plain_rows(context, second, text[850:853]), expected, strict=True):
        assert same_bits(row, wanted)


def test_strict_reuse_keeps_whole_chunks_and_regeneration_everything(make: MakeContext, text: Tokens) -> None:
    context = make(reuse="chunks", grid=128)
    plain_rows(context, text[:300], text[800:804])
    assert context.cached(0) == 304 + 0
    assert context.reusable(0, text[:400], 400) == 256
    assert context.reusable(0, text[:257], 257) == 256
    assert context.reusable(0, text[:256], 256) == 128
    assert context.reusable(0, np.concatenate([text[:300], text[800:802], text[5:7]]), 300) == 302
    longer = np.concatenate([text[:300], text[800:804], text[:9]])
    assert context.reusable(0, longer, len(longer)) == 256  # the generated part would be prefilled by a fresh run
    assert context.reusable(0, text[200:300], 100) == 0


def test_full_reuse_keeps_the_common_prefix(make: MakeContext, text: Tokens) -> None:
    context = make()
    plain_rows(context, text[:300], text[800:804])
    history = np.concatenate([text[:300], text[800:804], text[:9]])
    assert context.reusable(0, history, len(history)) == 304
    context.prefill(0, text[:200], 200)
    assert context.cached(0) == 199
    context.forget(0, 50)
    assert context.cached(0) == 50
    context.forget(0)
    assert context.cached(0) == 0


def test_missing_generated_tokens_are_computed_again_exactly(make: MakeContext, text: Tokens) -> None:
    """A conversation that comes back after its cache was lost gives the same rows."""
    prompt, after = text[:140], text[140:180]
    expected = plain_rows(make(), prompt, after)
    for widths in (None, frozenset({1, 2, 3, 4})):
        context = make()
        context.exact_widths = widths
        history = np.concatenate([prompt, after])
        if widths is not None:
            assert same_bits(last_row(context, history, 140), expected[40])
        context.forget(0, 170)
        assert same_bits(last_row(context, history, 140), expected[40]) or widths is None


def test_prefill_reports_its_grid_and_asks_for_no_logits(
    make: MakeContext, text: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make(grid=256)
    outputs: list[int] = []
    inner = context._api.llama_decode

    def counting(handle: object, batch: object) -> int:
        count = batch.n_tokens  # type: ignore[attr-defined]
        outputs.append(int(context._batch.output[:count].sum()))
        return int(inner(handle, batch))

    monkeypatch.setattr(context, "_api", _Spy(context._api, llama_decode=counting))
    context.prefill(0, text[:700], 700)
    assert outputs == [0, 0, 0]
    context.decode([Feed(0, text[:700], 700, text[700:702], chain(2))])
    context.decode([Feed(0, text[:703], 700)])
    assert outputs[3:] == [3, 1]


class _Spy:
    """An object with some attributes replaced."""

    def __init__(self, inner: object, **replaced: object) -> None:
        self.__dict__.update(replaced)
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_cancel_between_and_inside_chunks_then_continue(make: MakeContext, text: Tokens) -> None:
    expected = last_row(make(grid=128), text[:600])
    context = make(grid=128)
    polls = 0

    def cancel() -> bool:
        nonlocal polls
        polls += 1
        return polls > 300  # a chunk polls about 100 times

    with pytest.raises(Cancelled):
        context.prefill(0, text[:600], 600, cancel=cancel)
    assert polls == 301, "nobody asks again after yes"
    assert 0 < context.cached(0) < 599
    assert context.cached(0) % 128 == 0
    assert same_bits(last_row(context, text[:600]), expected)
    with pytest.raises(ZeroDivisionError):
        context.prefill(0, text[300:900], 600, cancel=lambda: bool(1 // 0))
    assert same_bits(last_row(context, text[:600]), expected)


def test_cancel_raised_inside_a_pass_comes_out(make: MakeContext, text: Tokens) -> None:
    context = make(grid=512)
    polls: list[int] = []

    def cancel() -> bool:
        polls.append(1)
        if len(polls) == 50:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        context.prefill(0, text[:600], 600, cancel=cancel)
    assert context.cached(0) == 0
    context.prefill(0, text[:600], 600)


def test_draft_contexts_take_missing_tokens_along(make: MakeContext, text: Tokens) -> None:
    context = make(grid_prefill=False)
    first = last_row(context, text[:10])
    assert context.cached(0) == 10
    assert context.pending(0, text[:14]) == 4
    last_row(context, text[:200])
    assert same_bits(last_row(context, text[:10]), first) or context.cached(0) == 10
    assert context.cached(0) == 10


def test_too_long_and_full(make: MakeContext, text: Tokens) -> None:
    context = make(n_ctx=300)
    with pytest.raises(ContextOverflowError, match=r"301 tokens.* 300"):
        context.prefill(0, text[:301], 301)
    with pytest.raises(ContextOverflowError):
        context.decode([Feed(0, text[:301], 301)])
    last_row(context, text[:300])
    with pytest.raises(UsageError, match="does not fit"):
        context.decode([Feed(0, text[:299], 299, text[:2], chain(2))])
    rows = context.decode([Feed(0, text[:298], 298, text[:2], chain(2))])[0]
    assert np.isfinite(rows[2]).all()


def test_trees_fit_up_to_the_end(make: MakeContext, text: Tokens) -> None:
    context = make(n_ctx=512, max_leaves=16)
    nodes = text[:32]
    parents = np.array([-1] * 16 + list(range(16)), dtype=np.int32)
    rows = context.decode([Feed(0, text[:510], 510, nodes, parents)])[0]
    assert len(rows) == 33
    assert np.isfinite(rows[32]).all()


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ([Feed(2, np.array([5], dtype=np.int32), 1)], "slot 2"),
        ([Feed(0, np.array([], dtype=np.int32), 0)], "empty"),
        ([Feed(0, np.array([5, 99999], dtype=np.int32), 2)], "token ids"),
        ([Feed(0, np.array([5, 6], dtype=np.int32), 2, np.array([-3], dtype=np.int32), chain(1))], "token ids"),
        ([Feed(0, np.array([5], dtype=np.int32), 1, np.array([7, 8], dtype=np.int32), chain(1))], "1 parents"),
        (
            [Feed(0, np.array([5], dtype=np.int32), 1, np.array([7, 8], dtype=np.int32), np.array([1, -1], np.int32))],
            "parent 1",
        ),
        (
            [Feed(0, np.array([5], dtype=np.int32), 1, np.array([7, 8], dtype=np.int32), np.array([-1, -1], np.int32))],
            "2 leaves",
        ),
        ([Feed(0, np.array([5], dtype=np.int32), 1), Feed(0, np.array([5], dtype=np.int32), 1)], "twice"),
        ([Feed(0, np.array([5], dtype=np.int32), 1, np.full(64, 7, dtype=np.int32), chain(64))], "65 rows"),
    ],
)
def test_what_would_abort_the_process_is_refused(make: MakeContext, feeds: Sequence[Feed], words: str) -> None:
    context = make(n_slots=2)
    with pytest.raises(UsageError, match=words):
        context.decode(feeds)
    assert len(context.decode([Feed(0, np.array([5, 6], dtype=np.int32), 2)])[0]) == 1


def test_nothing_to_decode(make: MakeContext) -> None:
    assert make().decode([]) == []


def test_a_closed_context_says_so(make: MakeContext, text: Tokens) -> None:
    context = make()
    context.close()
    context.close()
    with pytest.raises(UsageError, match="closed"):
        last_row(context, text[:3])


def test_save_and_restore(make: MakeContext, text: Tokens) -> None:
    first, second = make(), make()
    expected = plain_rows(first, text[:100], text[100:103])
    first.forget(0, 99)
    assert second.restore(0, first.save(0), text[:99], 100)
    for row, wanted in zip(plain_rows(second, text[:100], text[100:103]), expected, strict=True):
        assert same_bits(row, wanted)
    assert not second.restore(0, b"nonsense" * 10, text[:9], 9)
    assert second.cached(0) == 0


def test_a_state_that_cannot_be_trimmed(tmp_path: Path) -> None:
    """Plain decoding works, edits start over, drafts are refused in words."""
    path = write(tmp_path / "mamba.gguf", gguf_bytes(MAMBA_METADATA, MAMBA_TENSORS))
    tokens = np.arange(3, 43, dtype=np.int32)
    with Model.load(path) as recurrent:
        assert not recurrent.can_trim
        context = Context(recurrent, ContextSettings(n_ctx=64, threads=1))
        expected = plain_rows(context, tokens[:30], tokens[30:35])
        assert context.cached(0) == 35
        assert context.reusable(0, tokens[:20], 20) == 0
        again = plain_rows(context, tokens[:30], tokens[30:35])
        assert all(same_bits(left, right) for left, right in zip(expected, again, strict=True))
        assert same_bits(
            last_row(context, np.concatenate([tokens[:9], tokens[:9]])), last_row(context, tokens[[*range(9)] * 2])
        )
        with pytest.raises(UsageError, match="takes no drafts"):
            context.decode([Feed(0, tokens[:36], 30, tokens[:1], chain(1))])
        calls = 0

        def cancel() -> bool:
            nonlocal calls
            calls += 1
            return calls > 3

        with pytest.raises(Cancelled):
            context.prefill(0, tokens, 40, cancel=cancel)
        assert context.cached(0) == 0
        assert same_bits(last_row(context, tokens[:30]), expected[0])


def test_memory_is_reported(make: MakeContext, model: Model) -> None:
    assert make().kv_bytes == 1024 * model.header.n_layers * 2 * 2 * 64 * 2
