"""Models in a process of their own, which is a server: whatever ends it, the program that asks goes on.

Files: `place` is where it listens, `child` has one process at a time, `tape` keeps what was written before it ended,
`host` says what a face needs of it, `served` asks it, `answering` is who answers by it.
"""
