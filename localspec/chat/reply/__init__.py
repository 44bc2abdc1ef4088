"""From a model's raw answer to words, thoughts and tool calls."""
