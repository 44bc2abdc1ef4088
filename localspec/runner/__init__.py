"""Models in a process of their own: whatever ends it, the program that asks goes on.

Files: `messages` is what goes over the pipe, `outbox` sends it, `process` is the child as its parent sees it, `link`
has one process at a time, `engine` is what callers hold, `runner` is what the child does, `tape` keeps what was
written before it ended. Beside them stands a process that is a server: `place` is where it listens, `child` has one at
a time, `answering` asks it for answers.
"""
