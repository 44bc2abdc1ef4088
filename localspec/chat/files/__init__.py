"""Chats as files: export and import."""
