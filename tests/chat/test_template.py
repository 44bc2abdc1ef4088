"""Chat templates: rendering, refusing, and a model file that means harm."""

from __future__ import annotations

import re

import pytest

from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.turn import ROLES, Message
from localspec.errors import ModelError, UsageError

CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
HI = [Message("system", "Be brief."), Message("user", " Hi ")]


def test_messages_become_the_models_own_prompt() -> None:
    assert ChatTemplate(CHATML).render(HI) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_sees_the_models_begin_and_end_texts_and_more_variables() -> None:
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ extra }}", "<s>", "</s>")
    assert template.render([Message("user", "x")], extra=[1]) == "<s>x</s>[1]"


def test_whitespace_of_block_lines_is_dropped_as_the_templates_expect() -> None:
    source = "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\n"
    assert ChatTemplate(source).render([Message("user", "a"), Message("user", "b")]) == "a\nb\n"


def test_templates_may_leave_loops_and_ask_for_the_date() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% break %}{% endfor %}{{ strftime_now('%Y') }}")
    found = template.render([Message("user", "a"), Message("user", "b")])
    assert found[0] == "a"
    assert found[1:].isdigit()


def test_templates_know_the_date_under_llama_cpps_names() -> None:
    template = ChatTemplate("{{ date_string }}, {{ datetime }}")
    assert re.fullmatch(r"\d\d [A-Z]\w\w \d{4}, [A-Z]\w\w \d\d \d{4}", template.render(HI))
    assert template.render(HI, date_string="Monday", datetime="noon") == "Monday, noon"


def test_content_is_text_never_a_template() -> None:
    assert ChatTemplate("{{ messages[0].content }}").render([Message("user", "{{ 1 + 1 }}")]) == "{{ 1 + 1 }}"


def test_a_template_may_refuse_the_messages() -> None:
    with pytest.raises(UsageError, match="refuses these messages: roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(HI)


def test_a_model_without_a_template_says_so() -> None:
    template = ChatTemplate(None)
    assert not template.exists
    with pytest.raises(ModelError, match="no chat template") as caught:
        template.render(HI)
    assert caught.value.hint
    assert ChatTemplate("").exists


@pytest.mark.parametrize("source", ["{% for %}", "{{ 'a }}", "{% endif %}", "{{ x | no_such_filter }}"])
def test_a_broken_template_is_an_error_of_the_model(source: str) -> None:
    template = ChatTemplate(source)  # loading is none: text can be completed without it
    assert template.exists
    assert template.fault.startswith("The model's chat template is broken: ")
    with pytest.raises(ModelError, match=r"chat template is broken: .* --raw"):
        template.render(HI)


def test_what_is_marked_for_trainers_stands_for_itself() -> None:
    source = """{%- for message in messages %}
  {%- if message.role == 'user' %}
{{- '<|im_start|>user\\n' + message.content }}
  {%- else %}
{%- generation %}{% set said = message.content %}{{- '<|im_start|>' + said }}{% if 1 %}!{% endif %}{% endgeneration %}
  {%- endif %}
{%- endfor %}{{ said }}"""
    tags = ("{%- generation %}", "{% endgeneration %}")
    plain = source.replace(tags[0], "{#- #}").replace(tags[1], "{# #}")
    talk = [Message("user", "Hi"), Message("assistant", "Hello")]
    assert ChatTemplate(source).render(talk) == ChatTemplate(plain).render(talk) != ""
    assert "<|im_start|>Hello!" in ChatTemplate(source).render(talk)
    assert ChatTemplate("{% generation %}a").fault


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[99].content.upper() }}",
        "{{ nothing.at.all }}",
        "{{ 'x' | round }}",
        "{{ strftime_now(5) }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_a_template_that_fails_is_one_clear_error(source: str) -> None:
    with pytest.raises(UsageError, match="chat template"):
        ChatTemplate(source).render(HI)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['jinja2'] }}",
        "{{ strftime_now.__globals__['datetime'] }}",
        "{{ (messages | attr('__class__')).__mro__ }}",
        "{{ self.__init__.__globals__['os'] }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ messages.append({}) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ range(1000000000) | list }}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
    ],
)
def test_a_hostile_template_reaches_nothing(source: str) -> None:
    try:
        found = ChatTemplate(source).render(HI)
    except UsageError:
        return
    assert found == "", "an attribute it may not see is undefined: nothing is printed"


@pytest.mark.parametrize("role", ROLES)
def test_roles(role: str) -> None:
    assert Message(role, "x").role == role


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(UsageError, match="role 'robot'; it must be one of system, user, assistant, tool"):
        Message("robot", "x")
