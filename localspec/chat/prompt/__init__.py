"""From a conversation to the prompt that a model reads."""
