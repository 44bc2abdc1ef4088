"""Lines of a streamed completion to pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.remote.server import Piece, piece_of


def one(line: str) -> Piece:
    found = piece_of(line)
    assert found is not None
    return found


def test_text_of_both_kinds() -> None:
    assert one('data: {"choices": [{"text": "a"}]}').text == "a"
    assert one('data: {"choices": [{"delta": {"content": "b"}}]}').text == "b"
    assert one('data: {"choices": [{"delta": {"role": "assistant", "content": null}}]}') == Piece()


def test_the_end_and_what_it_brings() -> None:
    last = {"choices": [{"text": "", "finish_reason": "stop"}], "timings": {"predicted_n": 5, "draft_n": 0}}
    found = one(f"data: {json.dumps(last)}")
    assert found == Piece(finish="stop", tokens=5, drafted=0, done=True)
    later = one('data: {"choices": [], "usage": {"completion_tokens": 6, "prompt_tokens": 2}}')
    assert found.then(later) == Piece(finish="stop", tokens=6, prompt_tokens=2, drafted=0, done=True)
    assert one("data: [DONE]").done


def test_errors() -> None:
    assert one('data: {"error": {"message": "no\\nroom"}}').error == "no room"
    assert one('error: {"code": 500, "message": "gone"}').error == "gone"
    assert one("error: gone").error == "gone"


@pytest.mark.parametrize("line", ["", ": ping", "event: x", "id: 3"])
def test_what_is_no_data(line: str) -> None:
    assert piece_of(line) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_read_or_refused(data: object) -> None:
    for kind in (
        data,
        {"choices": data},
        {"choices": [data]},
        {"usage": data, "timings": data},
        {"choices": [{"delta": data}]},
        {"choices": [{"delta": {"tool_calls": data}}]},
        {"choices": [{"delta": {"tool_calls": [data, {"index": data, "id": data, "function": data}]}}]},
    ):
        try:
            piece = one(f"data: {json.dumps(kind)}")
        except ValueError:
            assert not (isinstance(kind, dict) and isinstance(kind.get("choices", [{}]), list) and "usage" in kind)
            continue
        assert isinstance(piece.text, str)
        assert piece.tokens >= 0
