"""The chats on disk."""
