"""What the tasks are about: texts, records, programs and listings, drawn from a seeded generator."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable
from dataclasses import dataclass

from words import (
    CITIES,
    CODE_NOUNS,
    CODE_VERBS,
    COLOURS,
    COMMON,
    FIRST_NAMES,
    JOBS,
    LAST_NAMES,
    MONTHS,
    PRODUCTS,
    SYLLABLES,
)

Value = str | int


@dataclass(frozen=True)
class Source:
    """Real text to copy from. Empty fields fall back to generated text."""

    sentences: tuple[str, ...] = ()
    code: tuple[str, ...] = ()


BUILT_IN = Source()
BY_LETTER: dict[str, list[str]] = {}
for _word in COMMON:
    BY_LETTER.setdefault(_word[0], []).append(_word)


def pseudo_word(rng: random.Random) -> str:
    """A pronounceable word that no dictionary has."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3)))


def word(rng: random.Random) -> str:
    """A common word, now and then an invented one."""
    return rng.choice(COMMON) if rng.random() < 0.8 else pseudo_word(rng)


ALPHABETS = ("0123456789", "0123456789abcdef", string.ascii_lowercase, string.ascii_uppercase + string.digits,
             string.ascii_letters + string.digits, string.ascii_letters + string.digits + "-_./:@#%&*+=")  # fmt: skip


def random_string(rng: random.Random, longest: int = 12) -> str:
    """Letters and digits without any pattern."""
    alphabet = rng.choice(ALPHABETS)
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(3, longest)))


def full_name(rng: random.Random) -> str:
    """A first name and a last name."""
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"


def sentence(rng: random.Random, source: Source = BUILT_IN) -> str:
    """A sentence: a real one if the source has any, else invented."""
    if source.sentences and rng.random() < 0.6:
        return rng.choice(source.sentences)
    words = [word(rng) for _ in range(rng.randint(4, 10))]
    shape = rng.random()
    if shape < 0.25:
        buyer = f"{rng.choice(FIRST_NAMES)} from {rng.choice(CITIES)}"
        return f"{buyer} bought {rng.randint(2, 90)} {words[0]}s and a {words[1]}."
    if shape < 0.4:
        day = f"{rng.choice(MONTHS)} {rng.randint(1, 28)}"
        return f"On {day} the {words[0]} and the {words[1]} {words[2]} near {rng.choice(CITIES)}."
    if shape < 0.5:
        return f'"{" ".join(words).capitalize()}," said {full_name(rng)}.'
    return " ".join(words).capitalize() + rng.choice(".!?")


def text(rng: random.Random, size: int, source: Source = BUILT_IN) -> str:
    """About `size` words of material of one kind (or of several, line by line)."""
    kind = rng.randrange(8)
    if kind == 0:
        return " ".join(word(rng) for _ in range(size))
    if kind == 1:
        return rng.choice((" ", "\n", ", ")).join(random_string(rng) for _ in range(max(1, size // 5)))
    if kind == 2:
        top = rng.choice((10, 100, 1000, 100000))
        return rng.choice((" ", ", ")).join(str(rng.randrange(top)) for _ in range(max(2, size // 3)))
    if kind == 3:
        return program(rng, size, source)[1]
    if kind == 4:
        mark = rng.choice(("- ", "* ", "{}. "))
        items = [" ".join(word(rng) for _ in range(rng.randint(1, 4))) for _ in range(max(2, size // 4))]
        return "\n".join(mark.format(index) + item for index, item in enumerate(items, 1))
    if kind == 5 and size >= 12:
        return "\n".join(text(rng, max(3, size // 4), source) for _ in range(3))
    parts = [sentence(rng, source)]
    while sum(part.count(" ") + 1 for part in parts) < size:
        parts.append(sentence(rng, source))
    if size < 8:
        return " ".join(parts[0].split(" ")[: max(2, size)])
    return rng.choice((" ", " ", "\n")).join(parts)


def record(rng: random.Random, kind: int) -> dict[str, Value]:
    """A small record: a person (kind 0), an order (1) or an event (2)."""
    if kind == 0:
        name = full_name(rng)
        return {"name": name, "age": rng.randint(18, 90), "city": rng.choice(CITIES), "job": rng.choice(JOBS),
                "email": f"{name.split()[0].lower()}{rng.randint(1, 99)}@{rng.choice(COMMON)}.com"}  # fmt: skip
    if kind == 1:
        return {"order": f"{rng.choice('ABCDEFGH')}{rng.randint(100, 9999)}", "product": rng.choice(PRODUCTS),
                "colour": rng.choice(COLOURS), "quantity": rng.randint(1, 40), "price": rng.randint(5, 900),
                "customer": full_name(rng)}  # fmt: skip
    return {"event": f"{rng.choice(COMMON)} {rng.choice(COMMON)}", "city": rng.choice(CITIES),
            "date": f"{rng.randint(2001, 2029)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
            "guests": rng.randint(2, 500), "host": full_name(rng)}  # fmt: skip


def as_lines(data: dict[str, Value]) -> str:
    """One `Key: value` line for each field."""
    return "\n".join(f"{key.capitalize()}: {value}" for key, value in data.items())


def as_pairs(data: dict[str, Value]) -> str:
    """`key=value` pairs."""
    return " ".join(f"{key}={value}" for key, value in data.items())


def as_prose(data: dict[str, Value]) -> str:
    """A sentence or two."""
    if "job" in data:
        return (f"{data['name']} is a {data['age']}-year-old {data['job']} from {data['city']}. "
                f"You can write to {data['email']}.")  # fmt: skip
    if "order" in data:
        return (f"{data['customer']} placed order {data['order']}: {data['quantity']} x {data['product']} "
                f"in {data['colour']} for {data['price']} dollars.")  # fmt: skip
    return (f"The event {data['event']} takes place in {data['city']} on {data['date']}. "
            f"{data['host']} expects {data['guests']} guests.")  # fmt: skip


def as_list(data: dict[str, Value]) -> str:
    """`key - value` parts in one line."""
    return " | ".join(f"{key} - {value}" for key, value in data.items())


RECORD_STYLES: tuple[Callable[[dict[str, Value]], str], ...] = (as_lines, as_pairs, as_prose, as_list)


def identifier(rng: random.Random) -> str:
    """A name as programmers write them."""
    shape = rng.randrange(5)
    verb, noun, other = rng.choice(CODE_VERBS), rng.choice(CODE_NOUNS), rng.choice(CODE_NOUNS)
    if shape == 0:
        return noun
    if shape == 1:
        return f"{verb}_{noun}"
    if shape == 2:
        return f"{noun}_{other}"
    if shape == 3:
        return verb + noun.capitalize()
    return pseudo_word(rng)


def distinct_names(rng: random.Random, count: int) -> list[str]:
    """Different identifiers."""
    names: list[str] = []
    while len(names) < count:
        name = identifier(rng)
        if name not in names:
            names.append(name)
    return names


PYTHON_BLOCKS = (
    "def {a}({b}, {c}):\n    {d} = {b} + {c}\n    return {d}",
    "def {a}({b}):\n    {c} = 0\n    for {d} in {b}:\n        {c} += {d}\n    return {c}",
    "{a} = [{n}, {m}, {k}]\nfor {b} in {a}:\n    print({b})",
    "def {a}({b}):\n    if {b} > {n}:\n        return {b} - {m}\n    return {b} * {k}",
    "class {a}:\n    def __init__(self, {b}, {c}):\n        self.{b} = {b}\n        self.{c} = {c}",
    "{a} = {n}\nwhile {a} > 0:\n    {b} = {a} % {m}\n    {a} -= 1\nprint({b})",
    "with open({a}) as {b}:\n    {c} = {b}.read()\n{d} = len({c})",
    '{a} = {{"{w}": {n}, "{v}": {m}}}\nfor {b}, {c} in {a}.items():\n    print({b}, {c})',
    "{a} = {b}({n}, {m})\n{c} = {a} * {k}",
    "try:\n    {a} = int({b})\nexcept ValueError:\n    {a} = {n}",
)
SCRIPT_BLOCKS = (
    "function {a}({b}, {c}) {{\n  const {d} = {b} * {c};\n  return {d};\n}}",
    "const {a} = [{n}, {m}, {k}];\nfor (const {b} of {a}) {{\n  console.log({b});\n}}",
    "let {a} = {n};\nif ({a} > {m}) {{\n  {a} = {b}({a});\n}}",
    "const {a} = ({b}) => {b}.map(({c}) => {c} + {n});",
    'const {a} = {{ {b}: {n}, {c}: "{w}" }};\nconsole.log({a}.{b});',
)
C_BLOCKS = (
    "int {a}(int {b}, int {c}) {{\n    int {d} = {b} - {c};\n    return {d};\n}}",
    "for (int {a} = 0; {a} < {n}; {a}++) {{\n    {b} += {c}[{a}];\n}}",
    'int {a} = {n};\nprintf("%d\\n", {a} + {m});',
    "if ({a} == {n}) {{\n    {b} = {c};\n}} else {{\n    {b} = {m};\n}}",
    "struct {a} {{\n    int {b};\n    float {c};\n}};",
)
LINES = (
    "{a} = {b} + {n}", "{a} = {b}", "{a} = {a} * {n}", "print({a})", "{a}({b})", "return {a} - {b}", "{a}.{b}({n})",
    "if {a} < {b}:", "{a} += {n}", "{a} = [{b}, {a}]", "while {a} > {n}:", "{a} = {b}({a}, {n})",
)  # fmt: skip
LANGUAGES: dict[str, tuple[str, ...]] = {"python": PYTHON_BLOCKS, "javascript": SCRIPT_BLOCKS, "c": C_BLOCKS}


def program(rng: random.Random, size: int, source: Source = BUILT_IN) -> tuple[str, str, list[str]]:
    """A program of about `size` words: its language, its text and the names that it uses."""
    if source.code and rng.random() < 0.3:
        return "", rng.choice(source.code), []
    language = rng.choice(("python", "python", "javascript", "c"))
    if size < 12:
        language = ""
    names = distinct_names(rng, 4 if size < 40 else rng.randint(5, 8))
    blocks: list[str] = []
    used: set[str] = set()
    while not blocks or sum(len(block.split()) for block in blocks) < size * 0.6:
        slots = dict(zip("abcd", rng.sample(names, 4), strict=True))
        shape = rng.choice(LANGUAGES[language] if language else LINES)
        used.update(name for slot, name in slots.items() if "{" + slot + "}" in shape)
        numbers = {slot: rng.choice((rng.randint(1, 9), rng.randint(10, 99))) for slot in "nmk"}
        blocks.append(shape.format(**slots, **numbers, w=rng.choice(COMMON), v=rng.choice(COMMON)))
    return language, rng.choice(("\n", "\n\n") if language else "\n").join(blocks), sorted(used)


def replace_name(code: str, old: str, new: str) -> str:
    """The code with one whole identifier replaced."""
    return re.sub(rf"(?<![A-Za-z0-9_]){re.escape(old)}(?![A-Za-z0-9_])", new, code)


def template(rng: random.Random, keys: list[str]) -> str:
    """A text with {key} slots."""
    parts = [f"{rng.choice(('The', 'Our', 'Your'))} {key} is {{{key}}}" for key in keys]
    opening = rng.choice(("Hello!", "Dear reader,", "Note:", "Good day."))
    closing = rng.choice(("Thank you.", "See you soon.", "Best wishes.", f"The {word(rng)} team."))
    return f"{opening} {', '.join(parts)}. {closing}"


def entries(rng: random.Random, count: int) -> dict[str, str]:
    """Keys with codes that cannot be guessed."""
    found: dict[str, str] = {}
    people = rng.random() < 0.5
    while len(found) < count:
        key = full_name(rng) if people else f"{rng.choice(COMMON)} {rng.choice(COMMON)}"
        found[key] = "".join(rng.choice("0123456789ABCDEF") for _ in range(rng.randint(3, 6)))
    return found


TOOLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "weather": (("city",), ("What is the weather in {city}?", "Is it raining in {city}?")),
    "wikipedia": (("query",), ("Look up {query}.", "What does the encyclopedia say about {query}?")),
    "calculator": (("expression",), ("Calculate {expression}.", "What is {expression}? Use the calculator.")),
    "send_mail": (("to", "text"), ("Send {to} a mail: {text}", "Mail {to} and say: {text}")),
    "set_timer": (("minutes",), ("Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.")),
}


def tool_case(rng: random.Random, name: str) -> tuple[str, dict[str, Value], dict[str, Value], str]:
    """A question, the arguments of its tool call, the tool's result, and the answer in words."""
    arguments: dict[str, Value]
    result: dict[str, Value]
    if name == "weather":
        arguments = {"city": rng.choice(CITIES)}
        result = {"temperature": rng.randint(-10, 38), "sky": rng.choice(("sunny", "cloudy", "rainy", "windy"))}
        answer = f"In {arguments['city']} it is {result['sky']} and {result['temperature']} degrees."
    elif name == "wikipedia":
        arguments = {"query": f"{rng.choice(COMMON)} {rng.choice(COMMON)}"}
        result = {"summary": sentence(rng).replace('"', "")}
        answer = str(result["summary"])
    elif name == "calculator":
        left, right, sign = rng.randint(2, 999), rng.randint(2, 999), rng.choice("+-*")
        arguments = {"expression": f"{left} {sign} {right}"}
        result = {"value": left + right if sign == "+" else left - right if sign == "-" else left * right}
        answer = f"{arguments['expression']} = {result['value']}"
    elif name == "send_mail":
        arguments = {"to": rng.choice(FIRST_NAMES), "text": " ".join(word(rng) for _ in range(rng.randint(2, 6)))}
        result = {"sent": "yes"}
        answer = f"Your mail to {arguments['to']} was sent."
    else:
        arguments = {"minutes": rng.randint(1, 90)}
        result = {"timer": "running"}
        answer = f"The timer runs for {arguments['minutes']} minutes."
    question = rng.choice(TOOLS[name][1]).format(**arguments)
    return question, arguments, result, answer
