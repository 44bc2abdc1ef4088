"""What answers, and other programs' OpenAI-style servers: how one is asked, and which answer on this machine.

`answerer` is the seam between faces and models, `served` a server behind it. `asking` asks for answers, `prompt` is
what is asked, `steps` is what only our own engine tells, `search` looks for servers. The chat, the command line and
`bench` use them.
"""
