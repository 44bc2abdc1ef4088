"""The terminal chat (Textual).

Each of its rooms imports only from those before it: `text/` (text as it is drawn), `talk/` (who answers, and the
`Session`: what a chat works with and no screen draws), `widgets/`, `screens/` (one file and one `.tcss` a screen),
`shell/` (the app around them). Widgets and screens get the session when they are made.

Answers come from a `remote.answerer.Answerer`: models in a process of their own (`runner.answering`), an engine of this
process (`local`), an OpenAI-style server, or a recording (tests). It works on threads of its own and only posts
messages; nothing here waits for it.
"""
