"""OpenAI's client for Node, as npm's registry has it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.live import COPIED, COPY, Live
from tests.server.named_events import LOOK_UP, QUERY

SCRIPT = """
import OpenAI from "openai";
const [url, copy, lookUp] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 });
const model = "tiny", temperature = 0, messages = [{ role: "user", content: copy }];
const whole = await client.chat.completions.create({ model, temperature, messages });
let streamed = "";
for await (const chunk of await client.chat.completions.create({ model, temperature, messages, stream: true }))
  streamed += chunk.choices[0]?.delta?.content ?? "";
const schema = { type: "object", additionalProperties: false,
  properties: { a: { enum: ["yes", "no"] } }, required: ["a"] };
const json = await client.chat.completions.create({
  model, messages, response_format: { type: "json_schema", json_schema: { name: "x", schema, strict: true } } });
const tools = [{ type: "function", function: { name: "wikipedia",
  parameters: { type: "object", properties: { query: { type: "string" } } } } }];
const called = await client.chat.completions.create({
  model, temperature, tools, messages: [{ role: "user", content: lookUp }] });
const response = await client.responses.create({ model, temperature, input: copy });
const events = [];
for await (const event of await client.responses.create({ model, temperature, input: copy, stream: true }))
  events.push(event.type);
let refused = 0;
try { await client.chat.completions.create({ model: "nobody", messages }); } catch (error) { refused = error.status; }
console.log(JSON.stringify({
  whole: whole.choices[0].message.content, streamed, json: JSON.parse(json.choices[0].message.content).a,
  call: called.choices[0].message.tool_calls[0].function, response: response.output_text,
  first: events[0], last: events.at(-1), refused }));
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not there")
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text('{"type": "module", "private": true}')
    run = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1", "openai@6"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    if run.returncode:
        pytest.skip(f"npm cannot install openai here: {run.stderr.strip().splitlines()[-1:]}")
    return folder


@pytest.mark.trial
def test_nodes_client_understands_everything(live: Live, project: Path) -> None:
    import json

    (project / "main.mjs").write_text(SCRIPT)
    run = subprocess.run(
        ["node", "main.mjs", f"{live.url}/v1", COPY, LOOK_UP],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["whole"] == found["streamed"] == found["response"] == COPIED
    assert found["json"] in ("yes", "no")
    assert found["call"]["name"] == "wikipedia"
    assert json.loads(found["call"]["arguments"]) == QUERY
    assert (found["first"], found["last"], found["refused"]) == ("response.created", "response.completed", 404)
