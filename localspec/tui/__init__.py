"""The terminal chat (Textual).

`app` owns what all screens share, `screens/` has one file and one `.tcss` a screen, `widgets/` what they are made of.
Answers come from an `answerer.Answerer`: an engine of this process (`local`), an OpenAI-style endpoint (`remote`), or
a recording (tests). It works on threads of its own and only posts messages; nothing here waits for it.
"""
