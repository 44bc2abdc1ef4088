"""Fields that the chat and the completion API share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from localspec.server.chat.fields import (
    MOST_CHOICES,
    MOST_STOPS,
    Harmless,
    Prediction,
    SamplingFields,
    Speculative,
    StreamOptions,
)
from localspec.server.chat.form import FormFields


class GenerationFields(Harmless, SamplingFields, FormFields):
    """How an answer is drawn, limited and drafted."""

    other_names: ClassVar[Mapping[str, str]] = {**SamplingFields.other_names, "n_predict": "max_tokens"}
    model: str | None = Field(default=None, description="Name of an installed model or pair; left out: the default.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES, description="Choices; each has its own random numbers.")
    max_tokens: int | None = Field(default=None, ge=-1, description="Most new tokens; -1 = until the model ends.")
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MOST_STOPS)] | None = Field(
        default=None, description="Tokens that end the answer, besides the model's own."
    )
    ignore_eos: bool | None = Field(default=None, description="Go on where the model would end (benchmarks).")
    prediction: Prediction | None = None
    speculative: Speculative | None = None
    timings_per_token: bool | None = Field(default=None, description="`timings` on every chunk of a stream.")

    @property
    def choices(self) -> int:
        """How many are asked for."""
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)
