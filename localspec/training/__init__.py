"""Trains a draft model for the target that is already here: `localspec train`.

The target answers prompts through the engine (`answers`). Some of its own layers and the tokens that its answers use
(`drafters.cut`) become a small model that learns what the target finds likely (`learning`). It is written as an
ordinary GGUF file and measured through the engine (`checks.gain`); `course` leads through all of it.
"""
