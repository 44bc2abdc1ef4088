"""llama.cpp's own server tests on `localspec serve`: a pytest plugin that starts ours where they start llama-server.

`python -m pytest -p tests.server.upstream.adapter` in their folder. llama-server's options become those of `serve`. The
model is the bundled pair, whichever they name, with the chat template that they name. What `serve` has no options for
(temperature, seed and limit where a request says none) is put into the requests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from requests.structures import CaseInsensitiveDict

# imported before servers are forked, so that each starts in a second
import localspec.cli.commands.serve
import localspec.runtime.pool
import localspec.server.http.app  # noqa: F401
from localspec import cli
from localspec.cli.commands.serve import KEY_VARIABLE
from localspec.paths import bundled
from tests.llama.rewritten_gguf import rewritten
from tests.server.upstream.table import Table

TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "command-r": "{% for m in messages %}<|START_OF_TURN_TOKEN|>"
    "<|{{ 'CHATBOT' if m.role == 'assistant' else m.role | upper }}_TOKEN|>{{ m.content }}"
    "<|END_OF_TURN_TOKEN|>{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
    "llama3": "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
}
"""Those that llama-server knows by name, as far as its tests name them."""
_LIMITS = ("n_predict", "max_tokens", "max_completion_tokens", "max_output_tokens")
_FORK = get_context("fork")
sys.modules.setdefault("wget", ModuleType("wget"))  # their utils.py imports it; nothing is downloaded here


def options_of(arguments: list[str]) -> argparse.Namespace:
    """llama-server's options, as far as `serve` has them."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--port", "--ctx-size", "--parallel"):
        parser.add_argument(name, type=int)
    for name in (
        "--alias",
        "--api-key",
        "--chat-template",
        "--chat-template-file",
        "--cors-origins",
        "--sleep-idle-seconds",
    ):
        parser.add_argument(name)
    parser.add_argument("--kv-unified", action="store_true")
    return parser.parse_known_args(arguments)[0]


def command_of(options: argparse.Namespace, folder: Path) -> list[str]:
    """`serve` with the same options; the model lies in `folder` under the name that they give it."""
    names = (options.alias or "model").split(",")
    command = ["serve", "--target", str(_model(options, folder / f"{names[0]}.gguf")), "--any-model", "--no-process"]
    command += ["--draft", str(bundled("tiny-draft-q8_0.gguf")), "--port", str(options.port), "--drain", "0"]
    command += ["--prompt-cache-size", "0"]
    for name in names[1:]:
        command += ["--alias", name]
    if options.parallel:
        command += ["--slots", str(options.parallel)]
    if options.ctx_size:
        share = 1 if options.kv_unified else options.parallel or 1
        command += ["--context", str(options.ctx_size // share)]
    if options.cors_origins:
        command += ["--cors", options.cors_origins]
    if options.sleep_idle_seconds:
        command += ["--idle-unload", options.sleep_idle_seconds]
    return command


def _model(options: argparse.Namespace, path: Path) -> Path:
    source, text = bundled("tiny-target-q8_0.gguf"), options.chat_template
    if options.chat_template_file:
        text = Path(options.chat_template_file).read_text(encoding="utf-8")
    if text is None:
        path.symlink_to(source)
        return path
    return rewritten(source, path, without={"tokenizer.chat_template"}, chat_template=TEMPLATES.get(text, text))


class Forked:
    """A server in a process of its own, as `subprocess.Popen` has them."""

    def __init__(self, arguments: list[str], **_: Any) -> None:
        self._folder = tempfile.TemporaryDirectory()
        options = options_of(arguments[1:])
        command = command_of(options, Path(self._folder.name))
        self._process = _FORK.Process(target=_serve, args=(command, options.api_key))
        self._process.start()
        self.pid = self._process.pid
        self.terminate, self.kill = self._process.terminate, self._process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> None:
        self._process.join(timeout)
        if self._process.is_alive():
            raise subprocess.TimeoutExpired("serve", timeout or 0)
        self._folder.cleanup()


def _serve(command: list[str], key: str | None) -> None:
    with open("serve.log", "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    if key is not None:
        os.environ[KEY_VARIABLE] = key
    print(*command, flush=True)
    raise SystemExit(cli.main(command))


def _filled(send: Callable[..., Any]) -> Callable[..., Any]:
    """Requests say what llama-server was started with."""

    def sent(server: Any, method: str, path: str, data: Any = None, *rest: Any, **more: Any) -> Any:
        if isinstance(data, dict) and not data.keys().isdisjoint(("prompt", "messages", "input_prefix")):
            data = {"temperature": server.temperature, "seed": server.seed} | data
            if data.keys().isdisjoint(_LIMITS) and server.n_predict:
                data["n_predict"] = server.n_predict
            if "prompt" in data:  # the model of theirs never ends; the bundled one does
                data = {"ignore_eos": True} | data
            if server.reasoning is not None:
                data["chat_template_kwargs"] = {"enable_thinking": server.reasoning != "off"}
        found = send(server, method, path, data, *rest, **more)
        if hasattr(found, "headers"):
            found.headers = CaseInsensitiveDict(found.headers)
        return found

    return sent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is out of scope, and puts our server in the place of theirs."""
    table = Table.read()
    out = [one for one in items if table.reason(one.path.stem, one.name)]
    items[:] = [one for one in items if one not in out]
    config.hook.pytest_deselected(items=out)
    theirs: Any = sys.modules["utils"]
    theirs.subprocess = SimpleNamespace(Popen=Forked, TimeoutExpired=subprocess.TimeoutExpired)
    theirs.ServerPreset.load_all = staticmethod(lambda: None)
    for name in ("make_request", "make_stream_request"):
        setattr(theirs.ServerProcess, name, _filled(getattr(theirs.ServerProcess, name)))
