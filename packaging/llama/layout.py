"""Numbers out of C headers: a small C program prints offsets, sizes and constants, and says which are not there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from libraries import Refusal


@dataclass(frozen=True, slots=True)
class Headers:
    """Headers that are read together."""

    names: tuple[str, ...]
    folders: tuple[Path, ...]
    """Where they lie."""

    def measure(self, expressions: Sequence[str]) -> list[int | None]:
        """What these C expressions are; None = they do not compile, since the headers declare no such thing.

        Raises:
            Refusal: there is no C compiler, or the headers do not compile.
        """
        missing = set[int]()
        with tempfile.TemporaryDirectory() as folder:
            while True:
                source, program = Path(folder, "layout.c"), Path(folder, "layout")
                source.write_text(self._program(expressions, missing), encoding="utf-8")
                wrong = self._compile(source, program)
                if not wrong:
                    break
                found = {line - self._lines_before for line in wrong}
                if found <= missing or not found <= set(range(len(expressions))):
                    raise Refusal(f"the headers do not compile: {'; '.join(wrong.values())}.")
                missing |= found
            done = subprocess.run([program], capture_output=True, text=True, check=True)
        return [None if word == "-" else int(word) for word in done.stdout.split()]

    @property
    def _lines_before(self) -> int:
        """Lines of the program before the one of the first expression, counted from 1."""
        return len(self.names) + 5

    def _program(self, expressions: Sequence[str], missing: set[int]) -> str:
        """One line for each expression: a compiler's errors name the line."""
        lines = [
            "#include <stddef.h>",
            "#include <stdio.h>",
            "#define GGML_COMMON_DECL_C",
            *(f'#include "{name}"' for name in self.names),
            "int main(void) {",
            *(
                'puts("-");' if index in missing else f'printf("%lld\\n", (long long)({expression}));'
                for index, expression in enumerate(expressions)
            ),
            "return 0; }",
        ]
        return "\n".join(lines) + "\n"

    def _compile(self, source: Path, program: Path) -> dict[int, str]:
        """{line of the program: what the compiler says against it}; of an error in a header the line is 0."""
        compiler = shlex.split(os.environ.get("CC", "cc"))
        command = [*compiler, "-w", *(f"-I{folder}" for folder in self.folders), str(source), "-o", str(program)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
            )
        except OSError as error:
            raise Refusal(f"{compiler[0]} does not start: {error.strerror}; CC names another C compiler.") from error
        if not done.returncode:
            return {}
        errors = re.findall(r"^(.+?):(\d+):(?:\d+:)? (?:fatal )?error: (.*)", done.stderr, re.MULTILINE)
        found = {int(line) if Path(file).name == source.name else 0: text for file, line, text in errors}
        return found or {0: done.stderr.strip().splitlines()[-1]}


def size_of(struct: str) -> str:
    """The expression for a struct's bytes."""
    return f"sizeof(struct {struct})"


def offset_of(struct: str, field: str) -> str:
    """The expression for where a field begins; of "FIRST..LAST" the first one."""
    return f"offsetof(struct {struct}, {field.partition('..')[0]})"


def size_of_field(struct: str, field: str) -> str:
    """The expression for a field's bytes; of "FIRST..LAST" those of all from the first to the last."""
    first, several, last = field.partition("..")
    if not several:
        return f"sizeof(((struct {struct} *)0)->{first})"
    return f"{offset_of(struct, last)} + {size_of_field(struct, last)} - {offset_of(struct, first)}"


def parameters(header: str) -> dict[tuple[str, str], int]:
    """{(struct, field): parameters} of the functions that structs point to; of (void) 0."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", header, flags=re.DOTALL)
    found = {}
    for struct, body in re.findall(r"\bstruct (\w+)\s*\{([^}]*)\}", text):
        for field, taken in re.findall(r"\(\s*\*\s*(\w+)\s*\)\s*\(([^()]*)\)\s*;", body):
            found[struct, field] = 0 if taken.strip() == "void" else taken.count(",") + 1
    return found


def declared_structs(header: str) -> dict[str, list[str]]:
    """{struct: its fields in order} of a header as plain as native/wide/abi.h."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    found: dict[str, list[str]] = {}
    for name, body in re.findall(r"^struct (\w+) \{([^}]*)\}", text, re.MULTILINE):
        found[name] = fields = []
        for declaration in body.split(";"):
            pointer = re.search(r"\(\*(\w+)", declaration)  # to a function or an array
            fields += [pointer[1]] if pointer else re.findall(r"(\w+)(?:\[\d+\])?\s*(?=,|$)", declaration)
    return found


def declared_constants(header: str) -> list[str]:
    """The names in the enums of a header as plain as native/wide/abi.h."""
    bodies = re.findall(r"^enum(?: \w+)? \{([^}]*)\}", header, re.MULTILINE)
    return [name for body in bodies for name in re.findall(r"(\w+) =", body)]
