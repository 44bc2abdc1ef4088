"""Generated tasks: each one a chat whose right answer is known exactly.

Every generator is a pure function of a `random.Random` and a size (roughly the number of words of
material), so that a seed names an example for ever. `TASKS` lists them all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import material
from material import Source
from words import CODE_NOUNS, COMMON

Message = dict[str, str]


@dataclass(frozen=True)
class Example:
    """A chat that ends with a user's turn, and the one right answer to it."""

    task: str
    messages: list[Message]
    answer: str
    key: str = ""  # the part of the answer that is not plain copying; it may count more in training


def ask(task: str, question: str, answer: str) -> Example:
    """An example of a single turn."""
    return Example(task, [{"role": "user", "content": question}], answer)


def place(rng: random.Random, befores: Sequence[str], afters: Sequence[str], text: str) -> str:
    """The text with an instruction before it or after it."""
    if rng.random() < 0.75:
        before = rng.choice(befores)
        return before + (text if before[-1] in " \n" else rng.choice("\n ") + text)
    return f"{text}\n\n{rng.choice(afters)}"


COPY_BEFORE = (
    "Repeat this text exactly:", "Copy:", "Repeat:", "Say this again:", "Echo the following:",
    "Please repeat the following text word for word:", "Write this text once more:",
    "Copy the text below without changing anything.\n", "Repeat after me:", "Type this again:",
    "Give me back exactly this:", "Reproduce the following verbatim:", "Please copy this:",
    "Answer with this text and nothing else:",
)  # fmt: skip
COPY_AFTER = (
    "Repeat the text above.", "Copy the text above exactly.", "Say the text above again.",
    "Please write the above again, word for word.", "Repeat that.", "Copy that verbatim.",
)  # fmt: skip


def copy(rng: random.Random, size: int, source: Source) -> Example:
    """Repeat a text verbatim: words, sentences, random strings, numbers, code, lists."""
    text = material.text(rng, size, source)
    return ask("copy", place(rng, COPY_BEFORE, COPY_AFTER, text), text)


def dumps(value: object) -> str:
    """JSON as the tasks write it."""
    return json.dumps(value, ensure_ascii=False)


JSON_ONE = (
    "Extract {fields} as JSON:", "Give me {fields} as a JSON object:", "Turn this into JSON with {fields}.",
    "Return JSON with the keys {fields}.", "Read the text and write {fields} as JSON.",
    "JSON please ({fields}):", "Extract the fields {fields} to JSON.",
)  # fmt: skip
JSON_MANY = (
    "Extract {fields} of every record as a JSON array:", "Make a JSON list with {fields} of each entry:",
    "Turn all records into a JSON array with {fields}.",
)  # fmt: skip


def json_fields(rng: random.Random, size: int, source: Source) -> Example:
    """Extract named fields of one record, or of all records, to JSON."""
    del source
    many = size >= 40 and rng.random() < 0.8
    kind = rng.randrange(3)
    people = [material.record(rng, kind) for _ in range(max(2, min(40, size // 16)) if many else 1)]
    available = list(people[0])
    wanted = rng.sample(available, rng.randint(1, min(4, len(available))))
    if many or rng.random() < 0.5:
        wanted = [key for key in available if key in wanted]
    style = rng.choice(material.RECORD_STYLES)
    text = "\n".join(style(person) if not many else style(person).replace("\n", "; ") for person in people)
    picked = [{key: person[key] for key in wanted} for person in people]
    answer = dumps(picked[0]) if not many else "[" + ",\n ".join(map(dumps, picked)) + "]"
    fields = ", ".join(wanted)
    head = rng.choice(JSON_MANY if many else JSON_ONE).format(fields=fields)
    question = f"{head}\n{text}" if rng.random() < 0.8 else f"{text}\n\n{head}"
    return ask("json", question, answer)


RENAME = (
    "Rename {old} to {new} in this code:", "Rename `{old}` to `{new}`.", "Change the name {old} to {new}:",
    "Please rename the identifier {old} to {new} in the code below.", "Replace {old} by {new} in:",
    "In this code, call {old} {new} instead.", "Refactor: {old} -> {new}",
)  # fmt: skip


def rename(rng: random.Random, size: int, source: Source) -> Example:
    """Rename one identifier in a piece of code; everything else stays."""
    del source
    language, code, names = material.program(rng, size)
    old = rng.choice(names)
    new = old
    while new in names or new == old:
        new = material.identifier(rng)
    fence = rng.random() < 0.5
    shown = f"```{language}\n{code}\n```" if fence else code
    answer = material.replace_name(shown, old, new)
    head = rng.choice(RENAME).format(old=old, new=new)
    question = f"{head}\n{shown}" if rng.random() < 0.8 else f"{shown}\n\n{head}"
    return Example("rename", [{"role": "user", "content": question}], answer, key=new)


def replace(rng: random.Random, size: int, source: Source) -> Example:
    """Rename one of a few names in a bare list of them: a step towards `rename`, where every token is a decision."""
    del source
    names = material.distinct_names(rng, 5) if size >= 12 else [rng.choice(CODE_NOUNS) for _ in range(5)]
    new, *kinds = names[: rng.randint(3, 5)]
    items = [rng.choice(kinds) for _ in range(rng.randint(3, max(4, min(24, size))))]
    old = rng.choice(items)
    joint = rng.choice((" ", ", ", "\n"))
    head = rng.choice(RENAME).format(old=old, new=new)
    shown = joint.join(items)
    question = f"{head}\n{shown}" if rng.random() < 0.9 else f"{shown}\n\n{head}"
    return ask("replace", question, joint.join(new if item == old else item for item in items))


def sort(rng: random.Random, size: int, source: Source) -> Example:
    """Sort a short list of numbers or of words."""
    del source
    count = rng.randint(3, 4 if size < 8 else 7)
    if rng.random() < 0.6:
        numbers = rng.sample(range(1, rng.choice((10, 100, 100, 1000))), count)
        down = rng.random() < 0.4
        shown = ", ".join(map(str, numbers))
        answer = ", ".join(map(str, sorted(numbers, reverse=down)))
        order = rng.choice(("from largest to smallest", "in descending order") if down
                           else ("from smallest to largest", "in ascending order", "in order"))  # fmt: skip
        verb = rng.choice(("Sort these numbers", "Sort", "Put these numbers"))
        return ask("sort", f"{verb} {order}: {shown}", answer)
    letters = rng.sample(sorted(material.BY_LETTER), count)
    words = [rng.choice(material.BY_LETTER[letter]) for letter in letters]
    head = rng.choice(("Sort alphabetically:", "Put these words in alphabetical order:",
                       "Sort these words from A to Z:"))  # fmt: skip
    return ask("sort", f"{head} {', '.join(words)}", ", ".join(sorted(words)))


def count(rng: random.Random, size: int, source: Source) -> Example:
    """Count the items of a short list aloud, or those equal to a given word."""
    del source
    number = rng.randint(2, 5 if size < 8 else 12)
    if rng.random() < 0.5:
        items = [material.word(rng) for _ in range(number)]
        steps = ", ".join(f"{index} {item}" for index, item in enumerate(items, 1))
        head = rng.choice(("How many words are here?", "Count the words:", "Count these items:"))
        return ask("count", f"{head} {' '.join(items)}", f"{steps}. Total: {number}")
    kinds = rng.sample(COMMON, rng.randint(2, 4))
    items = [rng.choice(kinds) for _ in range(number)]
    wanted = rng.choice(kinds)
    seen = 0
    steps_list = []
    for item in items:
        seen += item == wanted
        steps_list.append(f"{item} {seen}")
    head = rng.choice((f"How many times does {wanted} appear?", f"Count {wanted}:", f"How often do you see {wanted}?"))
    return ask("count", f"{head} {' '.join(items)}", f"{', '.join(steps_list)}. Total: {seen}")


def add_steps(left: int, right: int) -> str:
    """Column addition, the way it is written out in the answers."""
    lines: list[str] = []
    carry = 0
    tens, others = left, right
    while tens or others or not lines:
        one, two = tens % 10, others % 10
        total = one + two + carry
        lines.append(f"{one} + {two} + {carry} = {total}")
        carry = total // 10
        tens, others = tens // 10, others // 10
    return "\n".join(lines)


def arithmetic(rng: random.Random, size: int, source: Source) -> Example:
    """Column addition, or a chain of small sums, each step written out."""
    del source
    if rng.random() < 0.5:
        high = rng.choice((100, 1000) if size < 16 else (100, 1000, 10000))
        left, right = rng.randrange(high), rng.randrange(high)
        head = rng.choice(("What is {a} + {b}?", "Add {a} and {b}.", "{a} + {b} =", "Compute {a} + {b} step by step."))
        return ask("arithmetic", head.format(a=left, b=right), f"{add_steps(left, right)}\nAnswer: {left + right}")
    total = rng.randint(1, 20)
    shown = str(total)
    steps = []
    for _ in range(rng.randint(1, 2 if size < 8 else 5)):
        sign = rng.choice("+-") if total > 1 else "+"
        other = rng.randint(1, min(20, total) if sign == "-" else 20)
        after = total + other if sign == "+" else total - other
        steps.append(f"{total} {sign} {other} = {after}")
        shown += f" {sign} {other}"
        total = after
    head = rng.choice(("What is {x}?", "Compute {x}.", "Solve step by step: {x}", "{x} ="))
    return ask("arithmetic", head.format(x=shown), "\n".join(steps) + f"\nAnswer: {total}")


def reverse(rng: random.Random, size: int, source: Source) -> Example:
    """Write words in the reverse order."""
    del source
    words = [material.word(rng) for _ in range(rng.randint(2, max(3, min(10, size))))]
    head = rng.choice(("Reverse the order of these words:", "Write these words backwards, last word first:",
                       "Reverse this list:"))  # fmt: skip
    return ask("reverse", f"{head} {' '.join(words)}", " ".join(reversed(words)))


def upper(rng: random.Random, size: int, source: Source) -> Example:
    """Write words in capitals, or capitals in small letters."""
    del source
    text = " ".join(rng.choice(COMMON) for _ in range(rng.randint(1, max(2, min(12, size)))))
    if rng.random() < 0.7:
        head = rng.choice(("Write in capital letters:", "Make this uppercase:", "Uppercase:"))
        return ask("upper", f"{head} {text}", text.upper())
    head = rng.choice(("Write in small letters:", "Make this lowercase:", "Lowercase:"))
    return ask("upper", f"{head} {text.upper()}", text)


def fill(rng: random.Random, size: int, source: Source) -> Example:
    """Fill the {slots} of a template with given values."""
    del source
    person = material.record(rng, rng.randrange(3))
    keys = rng.sample(list(person), min(len(person), rng.randint(1, 3 if size < 20 else 4)))
    template = material.template(rng, keys)
    values = "\n".join(f"{key} = {person[key]}" for key in sorted(keys))
    answer = template
    for key in keys:
        answer = answer.replace("{" + key + "}", str(person[key]))
    head = rng.choice(("Fill in the template:", "Fill the slots:", "Complete this template with the values below:"))
    return ask("fill", f"{head}\n{template}\n\n{values}", answer)


def lookup(rng: random.Random, size: int, source: Source) -> Example:
    """Find one line of a long list of keys and values, and repeat its value."""
    del source
    entries = material.entries(rng, max(2, min(90, size // 6)))
    key = rng.choice(list(entries))
    listing = "\n".join(f"{name}: {value}" for name, value in entries.items())
    question = rng.choice(("What is the code of {k}?", "Which code belongs to {k}?", "Give me the code of {k}."))
    return ask("lookup", f"{listing}\n\n{question.format(k=key)}", f"{key}: {entries[key]}")


def tool(rng: random.Random, size: int, source: Source) -> Example:
    """Answer with a tool call, or with the tool's result."""
    del size, source
    offered = rng.sample(list(material.TOOLS), rng.randint(1, 3))
    chosen = rng.choice(offered)
    system = "Tools:\n" + "\n".join(f"{name}({', '.join(material.TOOLS[name][0])})" for name in offered)
    question, arguments, result, answer = material.tool_case(rng, chosen)
    call = f"<tool_call>{dumps({'name': chosen, 'arguments': arguments})}</tool_call>"
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    if rng.random() < 0.5:
        return Example("tool", messages, call)
    messages.append({"role": "assistant", "content": call})
    messages.append({"role": "tool", "content": f"<tool_result>{dumps(result)}</tool_result>"})
    return Example("tool", messages, answer)


AGAIN = ("Again, please.", "Say that again.", "Once more.", "Repeat your last answer.", "Please repeat that.")

Generator = Callable[[random.Random, int, Source], Example]
TASKS: dict[str, Generator] = {
    "copy": copy, "json": json_fields, "rename": rename, "sort": sort, "count": count,
    "arithmetic": arithmetic, "reverse": reverse, "upper": upper, "fill": fill, "lookup": lookup,
    "tool": tool,
}  # fmt: skip

STEPS: dict[str, Generator] = {"replace": replace}
"""Tasks that only training sees: they teach what one of `TASKS` needs."""


def chat(rng: random.Random, size: int, source: Source, names: Sequence[str], turns: int) -> Example:
    """Several tasks (of one user turn each) in one conversation; some turns ask for the last answer again."""
    messages: list[Message] = []
    answer = ""
    for turn in range(turns):
        if turn:
            messages.append({"role": "assistant", "content": answer})
        if turn and rng.random() < 0.25:
            messages.append({"role": "user", "content": rng.choice(AGAIN)})
            continue
        part = TASKS[rng.choice(names)](rng, max(3, size // turns), source)
        messages.extend(part.messages)
        answer = part.answer
    return Example("chat", messages, answer)
