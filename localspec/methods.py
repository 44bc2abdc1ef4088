"""The table of drafters: one row says all that the rest of the program must know of a way to draft.

A new drafter is a file in `localspec/drafters/` and a row here, which help texts, `verify` and tests read, too. What it
does, and who thought of it, stands in docs/drafters.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Need: TypeAlias = Literal["text", "grammar", "tokenizer", "inputs", "all inputs", "state", "own layers", "cache"]
"""What a method needs of the target: the text so far; a request's grammar; the same tokenizer; what goes into some of
its layers ("all inputs": what follows the last one, too); its last state; its layers of multi-token prediction; its own
cache."""
PLAIN = "none"  # the name that means plain decoding


@dataclass(frozen=True, slots=True)
class DrafterLook:
    """How the chat shows the tokens of a drafter."""

    letter: str  # sign of a token at position 1 of a draft. A digit is a position, and `x` a rejected guess.
    colour: str  # of its background, #rrggbb: Okabe and Ito's, made to be told apart with any kind of colour vision
    hue: str  # the colour's name
    underline: int = 1  # lines under its tokens where there is no colour: 0, 1 or 2
    italic: bool = False


BLUE, ORANGE, PINK = ("#56B4E9", "blue"), ("#E69F00", "orange"), ("#CC79A7", "pink")
GREEN, YELLOW, RED, DARK = ("#009E73", "green"), ("#F0E442", "yellow"), ("#D55E00", "red"), ("#0072B2", "dark blue")


@dataclass(frozen=True, slots=True)
class Gguf:
    """How GGUF files of a method are known: all that is given here must hold."""

    architecture: str = ""  # regular expression that the whole architecture fits; "" = any
    tensor: str = ""  # part of the name of a tensor that it holds; "" = none is needed
    nextn: bool = False  # whether it holds layers of multi-token prediction, and not the model they belong to
    called: str = ""  # regular expression that is found in the model's own name; "" = any name
    word: str = ""  # regular expression of the word in a file's name that tells it beforehand; "" = none


@dataclass(frozen=True, slots=True)
class Published:
    """How files of a method are known in the form in which models are published for Python."""

    words: tuple[str, ...]  # words in the model type or architectures of config.json, one of which is enough
    tensors: str  # regular expression at the beginning of a tensor's name, where the config does not tell
    key: str = ""  # key of config.json that is enough by itself; "" = none


@dataclass(frozen=True, slots=True)
class Method:
    name: str  # what a user asks for it by; the drafter's name everywhere
    title: str  # what people call it
    line: str  # one line for `--help`
    module: str  # `module:function` below `localspec.drafters`: makes the drafter of a `Setup`, or reads a file
    look: DrafterLook
    needs: Need = "inputs"
    shown: str = ""  # what `localspec show` says of it for a target that has what it needs
    kind: Literal["search", "model", "head"] = "head"
    """search: it has no file, and its drafts cost next to nothing; model: a whole model drafts; head: a file that was
    trained for one target."""
    gguf: Gguf | None = None  # how GGUF files of it are known; None = it has none, or every model could be one
    published: Published | None = None
    sentence: str = ""  # what a file of it is, with an article
    whole: bool = False  # whether its file is a model that could stand alone
    family: bool = False
    """Whether its files are part of one family of models. For a mixture of experts such a head is the most promising:
    each row of a pass reads experts of its own, and it drafts few tokens."""
    one_pass: bool = False  # whether it guesses all levels of a draft in one pass
    everywhere: bool = False
    """Whether it guesses in nearly every pass: where a draft is forced in each, a draft model would hardly have its
    turn."""
    chains: tuple[int, ...] = (1, 4)  # lengths of the chains that `localspec verify` tries
    tree: int = 6  # nodes of the trees that it tries; 0 = none
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # {another engine: its documentation's word for it}


_BLOCK = "all guesses in one pass"

TABLE: tuple[Method, ...] = (
    Method(
        "draft",
        "draft model",
        "the draft model",
        "draft_model:DraftModel",
        DrafterLook("d", *BLUE),
        "tokenizer",
        shown="any small model with the same tokenizer; `localspec suggest` names some",
        kind="model",
        sentence="a draft model",
        whole=True,
        chains=(1, 3, 6),
        elsewhere={
            "vllm": "draft_model",
            "sglang": "STANDALONE",
            "llama-server": "draft-simple",
            "tensorrt-llm": "Draft_Target",
        },
    ),
    Method(
        "grammar",
        "grammar",
        "what the request's grammar or JSON schema forces",
        "search:GrammarForced",
        DrafterLook("g", *PINK, 1, True),
        "grammar",
        kind="search",
        chains=(),
        tree=0,
    ),
    Method(
        "lookup",
        "prompt lookup",
        "prompt lookup (n-grams of this conversation, and text that a request predicts)",
        "search:PromptLookup.of",
        DrafterLook("l", *ORANGE, 2),
        "text",
        shown="needs nothing but the text so far",
        kind="search",
        chains=(3, 7),
        tree=0,
    ),
    Method(
        "suffix",
        "suffix decoding",
        "suffix decoding (the longest match in this conversation and in past answers that are kept)",
        "search:SuffixDecoding.of",
        DrafterLook("s", *GREEN, 2, True),
        "text",
        shown="the same; past answers help where they are kept (--corpus)",
        kind="search",
        chains=(5,),
    ),
    Method(
        "habits",
        "habits",
        "habits (what this model says after its last few tokens, here and in past answers that are kept)",
        "search:Habits.of",
        DrafterLook("h", *YELLOW, 0, True),
        "text",
        shown="the same; past answers help where they are kept (--corpus)",
        kind="search",
        everywhere=True,
        chains=(4,),
    ),
    # heads: the most promising for a dense model first, as users found them in late 2026
    Method(
        "dspark",
        "DSpark",
        f"a DSpark head, {_BLOCK} (needs --head)",
        "heads.blocks:load_dflash",
        DrafterLook("k", *RED, 2),
        shown="a head trained for it, as GGUF",
        gguf=Gguf("dflash", "markov_w1.weight", word="dspark"),
        sentence="a DSpark head",
        one_pass=True,
        elsewhere={"llama-server": "draft-dspark"},
    ),
    Method(
        "dflash2",
        "DFlash2",
        f"a DFlash2 head, {_BLOCK} (needs --head)",
        "heads.blocks:load_dflash",
        DrafterLook("F", *DARK, 2),
        shown="a head trained for it, as GGUF",
        gguf=Gguf("dflash", "selector_hidden.weight", word="dflash2"),
        sentence="a DFlash2 head",
        one_pass=True,
        elsewhere={"llama-server": "draft-dflash"},
    ),
    Method(
        "mtp",
        "multi-token prediction",
        "multi-token prediction (of the target's own file, else needs --head)",
        "heads.mtp:load",
        DrafterLook("t", *RED),
        "own layers",
        gguf=Gguf(nextn=True, word="mtp|nextn"),
        sentence="a multi-token-prediction head (MTP, NextN)",
        family=True,
        elsewhere={"vllm": "mtp", "sglang": "EAGLE", "llama-server": "draft-mtp", "tensorrt-llm": "MTP"},
    ),
    Method(
        "assistant",
        "Gemma assistant",
        "a Gemma 4 assistant, which reads the target's own cache (needs --head)",
        "heads.mtp:load_assistant",
        DrafterLook("a", *DARK),
        "cache",
        shown="the assistant published with it, as GGUF",
        gguf=Gguf(".*-assistant", word="assistant"),
        sentence="an assistant head",
        family=True,
    ),
    Method(
        "dflash",
        "DFlash",
        f"a DFlash head, {_BLOCK} (needs --head)",
        "heads.blocks:load_dflash",
        DrafterLook("f", *DARK),
        shown="a head trained for it, as GGUF",
        gguf=Gguf("dflash", word="dflash"),
        sentence="a DFlash head",
        one_pass=True,
        elsewhere={"vllm": "dflash", "sglang": "DFLASH", "llama-server": "draft-dflash", "tensorrt-llm": "DFlash"},
    ),
    Method(
        "eagle3",
        "EAGLE-3",
        "an EAGLE-3 head (needs --head)",
        "heads.eagle:load_eagle3",
        DrafterLook("e", *RED),
        "all inputs",
        shown="a head trained for it, as GGUF",
        gguf=Gguf("eagle3", word="eagle-?3"),
        published=Published(("eagle3",), r"midlayer\.|d2t$|t2d$", "draft_vocab_size"),
        sentence="an EAGLE-3 head",
        elsewhere={"vllm": "eagle3", "sglang": "EAGLE3", "llama-server": "draft-eagle3", "tensorrt-llm": "Eagle3"},
    ),
    Method(
        "eagle",
        "EAGLE",
        "an EAGLE-1 or EAGLE-2 head (needs --head)",
        "heads.eagle:load",
        DrafterLook("E", *RED, 2),
        "state",
        shown="heads trained for it, as published",
        published=Published(("eagle",), r"fc\.weight$"),
        sentence="an EAGLE head",
        elsewhere={"vllm": "eagle", "sglang": "EAGLE", "tensorrt-llm": "Eagle"},
    ),
    Method(
        "medusa",
        "Medusa",
        "Medusa heads (need --head)",
        "heads.final_state:load_medusa",
        DrafterLook("m", *DARK),
        "state",
        shown="heads trained for it, as published",
        gguf=Gguf(tensor="medusa", word="medusa"),
        published=Published(("medusa",), r"(?:medusa_head\.)?\d+\.\d+\.(?:linear\.)?weight$", "medusa_num_heads"),
        sentence="Medusa heads",
        elsewhere={"vllm": "medusa"},
    ),
    Method(
        "mlp",
        "MLP speculator",
        "an MLP speculator (needs --head)",
        "heads.final_state:load_mlp",
        DrafterLook("M", *RED),
        "state",
        shown="heads trained for it, as published",
        published=Published(("mlp_speculator", "mlpspeculator"), r"(?:speculator\.)?(?:emb|proj|head)\.\d+\.weight$"),
        sentence="an MLP speculator",
    ),
    Method(
        "pard",
        "PARD",
        f"a PARD draft model, {_BLOCK} (needs --head or --draft)",
        "heads.blocks:load_pard",
        DrafterLook("p", *DARK, 2),
        "tokenizer",
        shown="a PARD model with the same tokenizer",
        gguf=Gguf(called=r"(?i)\bPARD\d?\b"),
        sentence="a PARD draft model (several tokens a pass)",
        whole=True,
        one_pass=True,
        elsewhere={"vllm": "draft_model", "tensorrt-llm": "PARD"},
    ),
)
"""All of them. Those that search are made, and the chat lists all, in this order."""

ROWS: dict[str, Method] = {row.name: row for row in TABLE}
NAMES: dict[str, str] = {
    "auto": "those below that there are, each where it pays; plain decoding where none does",
    **{row.name: row.line for row in TABLE},
    PLAIN: "plain decoding",
}  # what `--drafter` takes, and a line about each
HEADS: tuple[str, ...] = tuple(row.name for row in TABLE if row.kind == "head")
"""Those whose files are trained for one target, the most promising for a dense model first."""
FROM_FILES: tuple[str, ...] = ("draft", *HEADS)  # those that draft with a file: a draft model, and heads
OF_ITS_OWN = "mtp"  # the method whose head a target's own file may contain
COPYING: tuple[str, ...] = tuple(row.name for row in TABLE if row.needs == "text")
"""Those that guess from what was said before, in any text and without a file."""
