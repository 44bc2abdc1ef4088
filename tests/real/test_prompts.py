"""Prompts of published models, token for token: by the file's own chat template, and by llama.cpp's own tokenizer."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.chat.turn import Message
from tests.real.published import ALL, INSTRUCT, Real, on

pytestmark = pytest.mark.trial

CONVERSATION = (
    ("system", "You are terse."),
    ("user", "Name a colour."),
    ("assistant", "Green."),
    ("user", "Another one,\nplease: 红 é 🙂"),
)
TURNS = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in CONVERSATION) + "<|im_start|>assistant\n"
OPENED = {
    "smollm2": "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n",
    "qwen": "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n",
}
"""What the template says where a conversation has no system message."""
MARKS = {"smollm2": (1, 2), "qwen": (151644, 151645)}
"""Ids of <|im_start|> and <|im_end|>, as the models' own tokenizer files have them."""
TEXTS = (
    "",
    " ",
    "Hello, world!",
    "  two spaces,\ttab\r\nand a line\n\n\nthen three",
    "def area(r):\n    return 3.14159 * r ** 2  # π\n",
    "1234567890 12,345.67 0x1F 1e-9",
    "don't they'll I've WE'RE",
    "Grüße aus Köln, 你好，世界, こんにちは, مرحبا, עברית, हिन्दी",
    "🙂 👩‍👩‍👧 \u200b\u00a0\u2028 e\u0301",
    "\x00\x07\x7f",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "<|im_start|>system\nno<|im_end|><start_of_turn>user<end_of_turn><bos></s><tool_call>",
    "<|im_start| > <|im_end <|fim_prefix|>",
)


def ids(tokens: np.ndarray) -> list[int]:
    return [int(token) for token in tokens]


@on(INSTRUCT)
def test_a_conversation_is_what_the_model_was_trained_with(real: Real) -> None:
    messages = [Message(role, text) for role, text in CONVERSATION]
    assert real.engine.chat_text(messages) == TURNS
    tokens = ids(real.engine.chat_tokens(messages))
    assert tokens == real.bare.tokenize(TURNS, special=True)
    begin, end = MARKS[real.name]
    assert [tokens.count(begin), tokens.count(end)] == [5, 4]
    assert tokens[0] == begin


@on(INSTRUCT)
def test_it_is_what_llama_cpp_makes_of_the_template(real: Real) -> None:
    assert real.bare.chat(CONVERSATION) == TURNS


@on(INSTRUCT)
def test_without_a_system_message_the_template_has_its_own(real: Real) -> None:
    asked = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    expected = real.bare.tokenize(OPENED[real.name] + asked, special=True)
    assert ids(real.engine.chat_tokens([Message("user", "Hi")])) == expected


@on(INSTRUCT)
def test_the_endpoint_reads_the_same_prompt(real: Real) -> None:
    messages = [{"role": role, "content": text} for role, text in CONVERSATION]
    usage = real.live.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).json()["usage"]
    assert usage["prompt_tokens"] == len(real.bare.tokenize(TURNS, special=True))
    shown = real.live.http.post("/apply-template", json={"messages": messages}).json()
    assert shown["prompt"] == TURNS


@on(ALL)
@pytest.mark.parametrize("special", [False, True])
def test_texts_have_llama_cpps_tokens(real: Real, special: bool) -> None:
    model = real.engine.loaded.model
    for text in TEXTS:
        assert ids(model.tokenize(text, special=special, add_bos=False)) == real.bare.tokenize(text, special), text
        assert ids(real.engine.tokenize(text, special=special)) == real.bare.tokenize(text, special, begin=True), text


@on(ALL)
def test_tokens_have_their_texts(real: Real) -> None:
    """Byte for byte, but for the NUL at which C ends a text."""
    model = real.engine.loaded.model
    for text in TEXTS:
        tokens = model.tokenize(text, special=False, add_bos=False)
        assert model.detokenize(tokens) == text, tokens
