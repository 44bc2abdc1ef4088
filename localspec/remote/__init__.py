"""What answers, and other programs' OpenAI-style servers: how one is asked, and which answer on this machine."""
