"""Other programs' OpenAI-style servers: how one is asked, and which answer on this machine.

`endpoint` asks for answers, `prompt` is what is asked, `search` looks for servers. The chat and the command line use
them.
"""
