"""What only the program that started this process may ask of its models."""
