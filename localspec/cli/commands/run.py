"""`localspec run`: one prompt in, one answer out; or a file of prompts, answered in several slots.

An input line of `--batch` is a JSON object with `prompt` (text) or `messages`, and optionally `id`, `seed` and
`max_tokens`; a JSON line comes for each as they finish.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from localspec import paths
from localspec.chat.plain_text import plain_text
from localspec.chat.text_file import check_text, read_text
from localspec.chat.turn import Message
from localspec.cli import output, shared, streams
from localspec.cli.commands.mcp import add_tool_options
from localspec.cli.parser import add_engine_settings, add_whole
from localspec.errors import LocalspecError, UsageError
from localspec.options import Options

if TYPE_CHECKING:
    from localspec.engine.stats import RequestStats
    from localspec.planning.costs import Knowledge
    from localspec.runtime.engine import Engine
    from localspec.runtime.generation import Generation


def add_options(parser: argparse.ArgumentParser) -> None:
    text = "model or pair by name (or --target), and the prompt; standard input or -f is put after it"
    parser.add_argument("words", nargs="*", metavar="[NAME] PROMPT", help=text)
    parser.add_argument("-f", "--file", metavar="FILE", help="text file to put after the prompt; - is standard input")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--raw", action="store_true", help="complete the text as it is, without the chat template")
    parser.add_argument("--json", action="store_true", help="one JSON object with text, tokens, seed and stats")
    parser.add_argument("--stats", action="store_true", help="figures on standard error")
    add_whole(parser, "--log-probs", "with --json: log-probabilities, and of the N best", None, 0, 100)
    parser.add_argument("--batch", metavar="FILE", help="JSON lines with prompt or messages; results as they finish")
    add_engine_settings(parser, "slots", text="requests at once with --batch; default: 4")
    add_tool_options(parser)
    shared.add_endpoint_options(parser)
    shared.add_model_options(parser)
    shared.add_sampling_options(parser)


def run(options: argparse.Namespace) -> int:
    shared.take_listed(options)
    prompt = _taken_words(options)
    elsewhere = prompt is not None or options.file or options.batch or not sys.stdin.isatty()
    alone = options.json or options.raw or options.log_probs is not None or options.slots is not None
    if not elsewhere and not alone and sys.stdout.isatty():  # a person gave nothing that the chat does not know
        from localspec.cli import build_parser
        from localspec.cli.commands import chat

        return chat.run(build_parser("chat").parse_args(["chat", *options.given[1:]]))
    shared.check_endpoint_options(options, "raw", "log_probs", "batch", "slots")
    shared.take_default(options)
    if options.log_probs is not None and not options.json:
        raise UsageError("--log-probs needs --json.")
    if options.yes and not options.tools:
        raise UsageError("--yes needs --tools.")
    if options.tools and (options.raw or options.batch or options.log_probs is not None):
        raise UsageError("--tools does not go with --raw, --batch and --log-probs.")
    if options.batch:
        if prompt or options.file:
            raise UsageError("--batch takes its prompts from the file; leave out the prompt and -f.")
        return _run_batch(options)
    if options.slots is not None:
        raise UsageError("--slots needs --batch.")
    if options.raw and options.system:
        raise UsageError("--raw and --system do not go together.", "Put all of it in the text.")
    text = _prompt_text(options, prompt)
    wanted = shared.wanted_of(options)
    if options.tools:
        return _run_with_tools(options, text, wanted)
    if options.endpoint:
        return _run_at_server(options, text, wanted)
    with shared.load_engine(options) as engine, output.reading_progress() as heard:
        shared.say_of_model(engine.settings.target, not engine.template.exists, options)
        generation = shared.start_answer(engine, options, text, replace(wanted, on_prefill=heard))
        if options.json:
            print(json.dumps(output.collect(generation, engine.loaded.configuration), ensure_ascii=False))
            return 0
        try:
            output.stream_answer(generation, channels=engine.template.has_channels and not options.raw)
        finally:
            if options.stats:
                output.print_stats(generation.stats, generation.request.seed, engine.loaded.configuration)
        if sys.stderr.isatty() and (idle := idle_draft(engine, generation.stats)):
            print(f"localspec: {idle}", file=sys.stderr)
    return 0


def _run_with_tools(options: argparse.Namespace, text: str, wanted: Options) -> int:
    """One question of a conversation, whose answer may call tools; with `--json` an object with the calls."""
    from localspec.cli.commands import chat
    from localspec.cli.commands.mcp import chosen
    from localspec.remote.server import base_of

    options = argparse.Namespace(**vars(options) | {"plain": True, "process": False})
    with chat.conversation(options, wanted, chosen(options.tools)) as held:
        with redirect_stdout(io.StringIO()) if options.json else nullcontext():
            held.ask(text)
        if held.stopped:
            raise KeyboardInterrupt
        if options.json and (end := held.last) is not None:
            said: dict[str, Any] = {"text": held.said, "finish_reason": end.finish.value, "seed": end.answer.seed}
            if options.endpoint:
                endpoint = base_of(options.endpoint)
                said |= {"model": held.facts.name, "endpoint": endpoint, "stats": shared.known(end.stats)}
            else:
                said |= {"stats": end.stats.as_dict(), "configuration": held.facts.configuration}
            print(json.dumps(said | {"calls": [asdict(one) for one in held.calls]}, ensure_ascii=False))
    return 0


def _run_at_server(options: argparse.Namespace, text: str, wanted: Options) -> int:
    """`localspec run` with a server: the answer, or with `--json` one object, on standard output."""
    from localspec.remote.answerer import Question
    from localspec.remote.asking import Reply, Requests
    from localspec.remote.server import Server

    requests = Requests(Server(options.endpoint, shared.key_of(options)))
    model = options.model or requests.models()[0]
    messages = [*([Message("system", options.system)] if options.system else []), Message("user", text)]
    reply = Reply(requests, Question(messages, wanted.sampling, wanted.seed, wanted.max_tokens, wanted.stop), model)
    base = requests.server.base
    if options.json:
        pieces = list[tuple[str, str]]()
        reply.read(lambda *piece: pieces.append(piece))
        text, thoughts = ("".join(one) for one in zip(*pieces, strict=True)) if pieces else ("", "")
        said: dict[str, Any] = {"text": text} | ({"reasoning": thoughts} if thoughts else {})
        said |= {"finish_reason": reply.finish.value, "seed": reply.seed, "model": model, "endpoint": base}
        print(json.dumps(said | {"stats": shared.known(reply.stats)}, ensure_ascii=False))
        return 0
    try:
        with output.answer_lines() as write:
            reply.read(lambda text, _: write(text))
    finally:
        if options.stats and shared.known(reply.stats):
            shared.print_known(reply.stats, reply.seed, f"{model} at {base}")
    return 0


def _taken_words(options: argparse.Namespace) -> str | None:
    """Turns the words of the command line into a target, and the prompt that is left."""
    words = options.words
    if len(words) > 2:
        raise UsageError(f"{words[2]!r} is one word too many.", "Put the prompt in quotes.")
    alone = len(words) == 1 and not options.endpoint and not options.target and shared.names_model(words[0])
    if len(words) == 2 or alone:
        shared.name_target(options, words[0])
        shared.take_listed(options)
        words = words[1:]
    if words and shared.names_model(words[0]):
        print(plain_text(f"localspec: {words[0]!r}, the name of a model, is the prompt."), file=sys.stderr)
    return words[0] if words else None


def _prompt_text(options: argparse.Namespace, prompt: str | None) -> str:
    """Prompt, file and standard input, in this order."""
    given = prompt if prompt != "-" else None
    check_text(given or "", "The prompt")
    parts = [given or ""]
    if options.file and options.file != "-":
        parts.append(read_text(options.file))
    if prompt == "-" or options.file == "-":
        parts.append(streams.read_all())
    elif not options.file and not sys.stdin.isatty():
        parts.append(streams.read_if_sent("-f - waits for it.") if given else streams.read_all())
    text = "\n\n".join(part for part in parts if part.strip())
    if not text.strip():
        raise UsageError("There is no prompt.", 'Try: localspec run "Repeat after me: good morning"')
    return text


def _run_batch(options: argparse.Namespace) -> int:
    """Answers every line; exit code 1 when one failed. An error of one line is its result, not the end of the rest."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    lines = list(_read(options.batch))
    wanted = shared.wanted_of(options)
    slots = min(options.slots or 4, max(len(lines), 1))
    failed = 0
    running: set[Generation] = set()

    def answer(line: dict[str, Any]) -> dict[str, Any]:
        try:
            more: dict[str, Any] = {key: line[key] for key in ("seed", "max_tokens") if key in line}
            messages = [Message(row["role"], row["content"]) for row in line.get("messages", ())]
            prompt = line.get("prompt", messages)
            generation = shared.start_answer(engine, options, prompt, wanted.having(more))
            running.add(generation)
            try:
                return {"id": line["id"], **output.collect(generation, engine.loaded.configuration)}
            finally:
                running.discard(generation)
        except LocalspecError as error:
            return {"id": line["id"], "error": str(error)}

    with shared.load_engine(options, slots=slots) as engine:
        shared.say_of_model(engine.settings.target, not engine.template.exists, options)
        with ThreadPoolExecutor(max_workers=slots) as workers:  # a worker waits for one slot's answer
            futures = [workers.submit(answer, line) for line in lines]
            try:
                for future in as_completed(futures):
                    result = future.result()
                    failed += "error" in result
                    print(json.dumps(result, ensure_ascii=False), flush=True)
            except BaseException:
                workers.shutdown(wait=False, cancel_futures=True)
                for generation in list(running):
                    generation.cancel()
                raise
    print(f"{len(lines) - failed} answered, {failed} failed.", file=sys.stderr)
    return 1 if failed else 0


def _read(path: str) -> Iterator[dict[str, Any]]:
    text = streams.read_all() if path == "-" else read_text(path)
    for number, row in enumerate(text.splitlines(), start=1):
        if not row.strip():
            continue
        try:
            line = json.loads(row)
            problem = _problem(line)
        except json.JSONDecodeError as error:
            problem = f"not JSON: {error}"
        if problem:
            raise UsageError(f"{path}, line {number}: {problem}.")
        yield {"id": number, **line}


def _problem(line: Any) -> str:
    """What is wrong with the form of a line; "" = nothing."""
    if not isinstance(line, dict) or ("prompt" in line) == ("messages" in line):
        return "it must be an object with either prompt or messages"
    unknown = set(line) - {"id", "prompt", "messages", "seed", "max_tokens"}
    if unknown:
        return f"unknown key {sorted(unknown)[0]!r}"
    if not isinstance(line.get("prompt", ""), str):
        return "prompt must be a text"
    messages, texts = line.get("messages", []), {"role": str, "content": str}
    if not isinstance(messages, list) or not all(
        isinstance(row, dict) and {key: type(value) for key, value in row.items()} == texts for row in messages
    ):
        return "messages must be a list of objects with the texts role and content"
    number = next((key for key in ("seed", "max_tokens") if key in line and type(line[key]) is not int), None)
    return f"{number} is {line[number]!r}; it must be a whole number" if number else ""


# A draft model or head that was loaded and never used in an answer: said once, with the reason that the plan knows.

FEWEST_PASSES = 64
"""Passes of an answer from which on a draft that was in none of them counts as never used: it was weighed in most of
them, and probed several times (`planning.passes` waits 8 passes for the first probe, and longer after each miss)."""
SLOW_GUESS = 0.5
"""Share of a plain pass from which on a guess is too slow to pay: it must be right more often than not to break even,
before its wider pass is paid for."""
ENOUGH_TRIALS = 16.0
"""Scored guesses from which on the rate of right ones is told; a first estimate counts as 6 (`planning.acceptance`)."""


def idle_draft(engine: Engine, stats: RequestStats) -> str:
    """A sentence about each draft that was given, loaded and never used in an answer; "" where there is none.

    Nothing is said of the bundled pair, which is there to be looked at, nor where settings leave no drafts.
    """
    loaded = engine.loaded
    given = (loaded.settings.target, *filter(None, (loaded.settings.draft,)), *loaded.settings.heads)
    ours = paths.real(paths.bundled(""))
    bundled = all(paths.real(path).parent == ours for path in given)
    if stats.passes < FEWEST_PASSES or not engine.settings.longest_draft or bundled:
        return ""
    length = stats.prompt_tokens + stats.generated
    return " ".join(
        f"The {'draft model' if name == 'draft' else f'{name} head'} was loaded and never used: "
        f"{reason(name, loaded.knowledge, stats, length)}."
        for name in loaded.trained
        if name in engine.drafters and not stats.drafted_by_drafter[name]
    )


def reason(name: str, knowledge: Knowledge, stats: RequestStats, length: int) -> str:
    """Why a plan did not use a drafter in an answer, whose cache holds `length` tokens; without a full stop."""
    plain = knowledge.costs.seconds(1, length)
    costs, table = knowledge.draft_costs.get(name), knowledge.acceptance[name]
    guess = costs.level(1) if costs is not None else 0.0
    if plain and guess >= SLOW_GUESS * plain:
        both = f"about {guess * 1e3:.2g} ms and a pass of the target about {plain * 1e3:.2g} ms"
        why = "it can hardly pay; a larger target or a smaller draft would change that"
        return f"a guess of it takes {both}, so that {why}"
    if table.scored >= ENOUGH_TRIALS:
        return f"its guesses are right {table.first_rate:.0%} of the time, which is too rarely to pay"
    if 2 * stats.draft_passes >= stats.passes:
        return f"drafts that cost nothing ({', '.join(stats.drafted_by_drafter)}) were in most passes in its place"
    return "the passes it could have saved would not have paid for reading the text and guessing"
