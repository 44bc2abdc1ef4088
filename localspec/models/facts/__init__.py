"""What a file says of its model: shape, tokenizer, pairs, heads."""
