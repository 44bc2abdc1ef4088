"""The terminal chat (Textual).

Each of its packages imports only from those before it: `text/` (text as it is drawn), `talk/` (the `Session`: what a
chat works with and no screen draws), `widgets/`, `screens/` (with a `.tcss` for each), `shell/` (the app around them).
Answers come from an `answerer.Answerer`: models of this machine, asked over a socket file (`runner.answering`), an
OpenAI-style endpoint (`remote.served`), or a recording (tests). It works on threads of its own and posts messages.
"""
