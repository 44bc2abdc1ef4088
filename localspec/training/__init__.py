"""Trains a draft model for the target that is already here: `localspec train`.

The target answers prompts through the engine (`prompts`, `answers`). Some of its own layers and the tokens that its
answers use (`target`, `vocabulary`) become a small model (`module`) that learns what the target finds likely
(`learning`). It is written as an ordinary GGUF file (`export`) and measured through the engine (`measure`). `plan` says
before what it takes, `course` leads through all of it.
"""
