"""Which form of tool calls a chat template asks for."""

from __future__ import annotations

from localspec.chat.reply.array_form import COMMAND_R, COMMAND_R7B, GRANITE
from localspec.chat.reply.call_form import BareForm, CallForm, ListForm, TaggedForm
from localspec.chat.reply.gemma_form import FUNCTION_GEMMA, GEMMA
from localspec.chat.reply.harmony import CONSTRAIN, HARMONY
from localspec.chat.reply.named_form import DEEPSEEK_CALL, KIMI, deepseek
from localspec.chat.reply.xml_form import PairForm, XmlForm


def form_of(source: str) -> CallForm | None:
    """The form that a template with tools asks for; None = one that is not known here."""
    if all(mark in source for mark in HARMONY.markers if mark != CONSTRAIN):
        return HARMONY
    if "[TOOL_CALLS]" in source:
        return ListForm(named="[ARGS]" in source)
    if "<function=" in source and "<parameter=" in source:
        return XmlForm()
    if "<tool_call>" in source and "<arg_key>" in source and "<arg_value>" in source:
        return PairForm()
    for mark, form in _BY_MARK.items():
        if mark in source:
            return form
    if DEEPSEEK_CALL in source:
        return deepseek(fenced="```json" in source)
    if "<tool_call>" in source:
        return TaggedForm()
    if "Action:" in source and "```json" in source and '"tool_name"' in source:
        return COMMAND_R
    if "<|python_tag|>" in source or ("<|start_header_id|>" in source and '"parameters"' in source):
        return BareForm()
    return None


_BY_MARK: dict[str, CallForm] = {
    GEMMA.opening: GEMMA,
    FUNCTION_GEMMA.opening: FUNCTION_GEMMA,
    KIMI.call: KIMI,
    COMMAND_R7B.opening: COMMAND_R7B,
    GRANITE.opening: GRANITE,
}
"""Forms that one mark tells."""
