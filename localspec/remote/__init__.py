"""Other programs' OpenAI-style servers: how one is asked, and which answer on this machine.

`asking` asks for answers, `prompt` is what is asked, `search` looks for servers, `steps` is what only our own engine
tells. The chat and the command line use them.
"""
