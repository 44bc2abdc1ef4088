"""Programs that can use our endpoint, and how each is told its address, model and key: by arguments and environment."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

KEY_VARIABLE = "LOCALSPEC_API_KEY"
"""Variable that holds the key of our endpoint, for `serve` and for those who ask it."""
NO_KEY = "none"
"""What a client gets as a key where the server asks for none: most refuse to start without any."""
_MILLISECONDS = 3_600_000
"""An hour: how long a client waits for an answer. A long prompt takes minutes on a CPU, more than clients wait for by
themselves (Claude Code 10 minutes, Codex and opencode 5)."""
_SECRET = re.compile(r"_(API_?KEY|API_TOKEN|AUTH_TOKEN|OAUTH_TOKEN)$", re.IGNORECASE)
"""Names of variables that hold keys of providers."""
_REDIRECTING = frozenset((
    "ANTHROPIC_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS", "ANTHROPIC_MODEL", "AWS_BEARER_TOKEN_BEDROCK",
    "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_FOUNDRY", "CLAUDE_CODE_USE_VERTEX", "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_BASE", "OPENAI_BASE_URL", "OPENAI_ORGANIZATION", "OPENAI_ORG_ID",
    "OPENAI_PROJECT_ID",
))  # fmt: skip
"""Further variables with which these programs would ask another provider, or tell ours about it."""


@dataclass(frozen=True, slots=True)
class Server:
    """The endpoint that answers."""

    url: str
    """`http://host:port`, without /v1."""
    model: str
    context: int | None = None
    """Tokens; None = the server does not say."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How a client is started."""

    program: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables it needs, besides the key."""
    key_variable: str = KEY_VARIABLE
    """Where it reads the key."""
    first_prompt: int | None = None
    """Tokens of its first prompt, system message and tools, as once recorded; None = not known."""


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without keys of providers, and without what would lead a client to one."""
    return {name: value for name, value in environment.items() if not _SECRET.search(name) and name not in _REDIRECTING}


def _claude(server: Server) -> Setup:
    models = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("HAIKU", "SONNET", "OPUS")))
    environment = {"ANTHROPIC_BASE_URL": server.url, **dict.fromkeys(models, server.model)}
    # Else the system message begins with a line that differs from session to session, and no prompt is found cached.
    environment["CLAUDE_CODE_ATTRIBUTION_HEADER"] = "0"
    environment["API_TIMEOUT_MS"] = environment["CLAUDE_STREAM_IDLE_TIMEOUT_MS"] = str(_MILLISECONDS)
    environment["ANTHROPIC_SMALL_FAST_MODEL"] = server.model  # the name of older versions
    return Setup("claude", (), environment, "ANTHROPIC_AUTH_TOKEN", 18_846)


def _codex(server: Server) -> Setup:
    provider = {"name": "localspec", "base_url": f"{server.url}/v1", "env_key": KEY_VARIABLE, "wire_api": "responses"}
    settings = {f"model_providers.localspec.{key}": value for key, value in provider.items()}
    words = [word for key, value in settings.items() for word in ("-c", f"{key}={json.dumps(value)}")]
    words += ["-c", f"model_providers.localspec.stream_idle_timeout_ms={_MILLISECONDS}"]
    if server.context is not None:
        words += ["-c", f"model_context_window={server.context}"]
    words += ["-c", 'model_provider="localspec"', "-m", server.model]
    return Setup("codex", tuple(words), first_prompt=6_662)


def _opencode(server: Server) -> Setup:
    limits = {} if server.context is None else {"limit": {"context": server.context, "output": server.context // 4}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "localspec",
        "options": {"baseURL": f"{server.url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"}
        | dict.fromkeys(("timeout", "headerTimeout", "chunkTimeout"), _MILLISECONDS),
        "models": {server.model: {"name": server.model, **limits}},
    }
    settings = {"provider": {"localspec": provider}} | dict.fromkeys(
        ("model", "small_model"), f"localspec/{server.model}"
    )
    return Setup("opencode", (), {"OPENCODE_CONFIG_CONTENT": json.dumps(settings)}, first_prompt=7_622)


def _aider(server: Server) -> Setup:
    environment = {"OPENAI_API_BASE": f"{server.url}/v1"}
    models = [word for option in ("--model", "--weak-model") for word in (option, f"openai/{server.model}")]
    words = (*models, "--timeout", str(_MILLISECONDS // 1000))
    return Setup("aider", words, environment, "OPENAI_API_KEY", 697 + 1024)  # its map of a repository has 1,024 at most


def _goose(server: Server) -> Setup:
    environment = {"GOOSE_PROVIDER": "openai", "GOOSE_MODEL": server.model, "OPENAI_HOST": server.url}
    if server.context is not None:
        environment["GOOSE_CONTEXT_LIMIT"] = str(server.context)
    return Setup("goose", ("session",), environment, "OPENAI_API_KEY")


def _qwen(server: Server) -> Setup:
    environment = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_MODEL": server.model}
    if server.context is not None:
        environment["QWEN_CODE_MAX_OUTPUT_TOKENS"] = str(server.context // 4)  # else 8,000, whatever the context
    return Setup("qwen", ("--auth-type", "openai"), environment, "OPENAI_API_KEY", 14_467)


CLIENTS: dict[str, Callable[[Server], Setup]] = {
    "claude": _claude,
    "codex": _codex,
    "opencode": _opencode,
    "aider": _aider,
    "goose": _goose,
    "qwen": _qwen,
}
"""By name, what sets a client up for a server."""
