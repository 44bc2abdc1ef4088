"""GET /: a page for people that says what runs here and how to connect to it. It has no scripts and loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from localspec import __version__
from localspec.server.chat.service import Service

ROUTER = APIRouter(tags=["page"])
_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "Cache-Control": "no-store"}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem }
td, th { text-align: left; padding: 0 1.5rem 0 0 }
"""
_APIS = (
    ("OpenAI", "/v1", "chat/completions, responses, completions, embeddings, models"),
    ("Anthropic", "", "v1/messages"),
    ("Ollama", "", "api/chat, api/generate, api/tags, api/show, api/ps"),
    (
        "llama-server",
        "",
        "health, metrics, props, slots, completion, infill, embedding, tokenize, detokenize, apply-template",
    ),
)
"""Whose API, what goes after the server's address to make the client's base address, and the routes below that."""


@ROUTER.get("/", summary="A page about the server", response_class=HTMLResponse)
async def page(request: Request) -> HTMLResponse:
    """What is loaded, which APIs there are, and how to connect."""
    service: Service = request.app.state.service
    rows = list[tuple[str, ...]]()
    for name, facts in service.pool.facts().items():
        used = min((await service.under_way(name)).count, facts.slots)
        rows.append((name, f"{facts.context}", f"{used} of {facts.slots}"))
    return HTMLResponse(_page(service, str(request.base_url).rstrip("/"), rows), headers=_HEADERS)


def _page(service: Service, address: str, loaded: list[tuple[str, ...]]) -> str:
    """`loaded`: name, context and slots in use of each model in memory."""
    where, default = escape(address), escape(service.pool.default)
    apis = [(whose, f"{address}{base}", routes) for whose, base, routes in _APIS]
    key = "<p>Clients send an API key of this server.</p>" if service.settings.api_keys else ""
    models = _table(("Model in memory", "Context", "Slots in use"), loaded) if loaded else "<p>No model is loaded.</p>"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>localspec</title><style>{_STYLE}</style></head><body>
<h1>localspec {escape(__version__)}</h1>
<p>The default model is <b>{default}</b>. Another one that is installed is loaded when a request names it:
<a href="/v1/models">list of the models</a>.</p>
{models}
<h2>Connect</h2>
{_table(("API", "Base address", "Routes"), apis)}
{key}<pre>curl {where}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{{"messages": [{{"role": "user", "content": "Hello"}}]}}'
OLLAMA_HOST={where} python3 -c 'import ollama; print(ollama.list())'</pre>
<p><a href="/openapi.json">Description of all routes</a>, <a href="/metrics">metrics</a>,
<a href="/slots">slots</a>.</p>
</body></html>
"""


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    first = "".join(f"<th>{escape(head)}</th>" for head in heads)
    more = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<table>\n<tr>{first}</tr>\n{more}</table>"
