"""`serve` in front of the processes that have its models."""
