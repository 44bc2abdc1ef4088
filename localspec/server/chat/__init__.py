"""OpenAI's chat and completion APIs, and what all APIs share."""
