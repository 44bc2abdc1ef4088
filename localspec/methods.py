"""The table of drafters: one row says all that the rest of the program must know of a way to draft.

A new drafter is a file in `localspec/drafters/` and a row here, which help texts, docs, `verify` and tests read, too.
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
    does: str  # its row in docs/drafters.md: what it does, or of a file what it is
    look: DrafterLook
    needs: Need = "inputs"
    good_at: str = ""  # what texts it is good at; only of methods without a file
    source: str = ""  # who thought of it
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
        "a small whole model with the target's tokenizer",
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
        "guesses what a grammar or JSON schema forces",
        DrafterLook("g", *PINK, 1, True),
        "grammar",
        good_at="JSON",
        kind="search",
        chains=(),
        tree=0,
    ),
    Method(
        "lookup",
        "prompt lookup",
        "prompt lookup (n-grams of this conversation, and text that a request predicts)",
        "search:PromptLookup.of",
        "finds the last n tokens earlier in the conversation and guesses what followed there; "
        "also searches a `prediction`",
        DrafterLook("l", *ORANGE, 2),
        "text",
        good_at="edits, extracts, quotes",
        source="Saxena 2023",
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
        "finds the longest match, in the conversation and in past answers that are kept (by the terminal chat, "
        "elsewhere with `--corpus`), and lets all places vote",
        DrafterLook("s", *GREEN, 2, True),
        "text",
        good_at="answers like earlier answers",
        source="Oliaro et al. 2024",
        shown="the same; past answers help where they are kept (--corpus)",
        kind="search",
        chains=(5,),
    ),
    Method(
        "habits",
        "habits",
        "habits (what this model says after its last few tokens, here and in past answers that are kept)",
        "search:Habits.of",
        "counts what followed the last one to four tokens, in the conversation and in the model's own past answers",
        DrafterLook("h", *YELLOW, 0, True),
        "text",
        good_at="any text, the more it has answered",
        source="Witten and Bell 1991",
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
        "GGUF of architecture `dflash` with a Markov head: each guess depends on the one before",
        DrafterLook("k", *RED, 2),
        source="deepseek-ai",
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
        "GGUF of architecture `dflash` with a selector: each guess is one of a few candidates",
        DrafterLook("F", *DARK, 2),
        source="z-lab and inco.ai",
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
        "the target's own NextN layers (no file to give), or a companion `mtp-*.gguf`",
        DrafterLook("t", *RED),
        "own layers",
        source="DeepSeek-V3",
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
        "GGUF of architecture `gemma4-assistant`, for Gemma 4: it reads the target's own cache",
        DrafterLook("a", *DARK),
        "cache",
        source="Google",
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
        "GGUF of architecture `dflash`: one pass guesses a block of tokens, each by itself",
        DrafterLook("f", *DARK),
        source="Chen et al. 2026",
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
        "GGUF of architecture `eagle3`",
        DrafterLook("e", *RED),
        "all inputs",
        source="Li et al. 2025",
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
        "EAGLE-1 or 2 in its published folder",
        DrafterLook("E", *RED, 2),
        "state",
        source="Li et al. 2024",
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
        "`medusa_lm_head` as .safetensors or .pt (.pt needs torch)",
        DrafterLook("m", *DARK),
        "state",
        source="Cai et al. 2024",
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
        "MLP speculator (accelerator) in its published folder",
        DrafterLook("M", *RED),
        "state",
        source="Wertheimer et al. 2024",
        shown="heads trained for it, as published",
        published=Published(("mlp_speculator", "mlpspeculator"), r"(?:speculator\.)?(?:emb|proj|head)\.\d+\.weight$"),
        sentence="an MLP speculator",
    ),
    Method(
        "pard",
        "PARD",
        f"a PARD draft model, {_BLOCK} (needs --head or --draft)",
        "heads.blocks:load_pard",
        "a draft model with a mask token: all guesses from one pass",
        DrafterLook("p", *DARK, 2),
        "tokenizer",
        source="An et al. 2025",
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
