"""A base model, which has no chat template: it completes texts, and says what it cannot do."""

from __future__ import annotations

import pytest

from localspec.chat.turn import Message
from localspec.errors import ModelError
from tests.real.published import Real, on
from tests.server.live import error_of, user

pytestmark = pytest.mark.trial


@on(["gemma3"])
def test_it_completes_a_text(real: Real) -> None:
    response = real.live.complete("1, 2, 3, 4, 5, 6, 7, 8,", temperature=0, max_tokens=8)
    assert response.json()["choices"][0]["text"].startswith(" 9, 10")


@on(["gemma3"])
def test_a_text_begins_with_its_first_token(real: Real) -> None:
    assert real.engine.tokenize("Paris").tolist() == [2, *real.bare.tokenize("Paris", special=False)]


@on(["gemma3"])
def test_a_conversation_is_refused_in_a_sentence(real: Real) -> None:
    assert not real.engine.template.exists
    with pytest.raises(ModelError, match="no chat template"):
        real.engine.chat_tokens([Message("user", "Hi")])
    response = real.live.http.post("/v1/chat/completions", json={"messages": [user("Hi")]})
    assert response.status_code == 400
    assert "no chat template" in error_of(response)["message"]
