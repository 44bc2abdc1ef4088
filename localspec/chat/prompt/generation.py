"""`{% generation %}`: templates mark with it, for trainers, what the model says. In a prompt it is its content."""

from __future__ import annotations

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser


class Generation(Extension):
    """The tags, as `transformers` has them, without what it counts between them."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own way

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
