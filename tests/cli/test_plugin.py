"""`--drafter package.module:Class`, and vLLM's key for it: what cannot work is said before anything is loaded."""

from __future__ import annotations

import json

import pytest

from localspec.cli.shared import vllm_settings
from localspec.errors import UsageError
from tests.cli.conftest import Command
from tests.drafters import plug_ins

HERE = plug_ins.__name__


@pytest.mark.parametrize("arguments", [("run", "hi"), ("verify",), ("chat", "--plain"), ("serve", "--port", "0")])
def test_a_class_that_is_not_there_is_one_sentence(command: Command, arguments: tuple[str, ...]) -> None:
    result = command(*arguments, "--drafter", f"{HERE}:Nobody")
    assert result.code == 2
    assert result.err.splitlines()[-1] == (
        f"localspec: The drafter {HERE}:Nobody is not there: the module {HERE} has no Nobody."
    )


@pytest.mark.parametrize("model", ["my.package.Guesser", "my.package:Guesser"])
def test_vllms_custom_class_is_ours(model: str) -> None:
    given = {"method": "custom_class", "model": model, "num_speculative_tokens": 3}
    assert vllm_settings(json.dumps(given)) == {"drafter": "my.package:Guesser", "max_draft_tokens": 3}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "custom_class"}, "model is ''; with custom_class it is package.module.Class"),
        ({"method": "custom_class", "model": "Guesser"}, "model is 'Guesser'"),
        ({"method": ["ngram"]}, "method is ['ngram']; supported: ngram,"),
    ],
)
def test_what_is_no_custom_class_is_said(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as error:
        vllm_settings(json.dumps(given))
    assert said in str(error.value)
