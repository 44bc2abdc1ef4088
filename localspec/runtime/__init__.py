"""Owns models, contexts and the engine thread; faces send it requests and read events.

Files: `loading` makes target, draft model and drafter from settings, `worker` is the thread that gives slots to
requests, `generation` is one answer under way, `engine` is what callers hold, `facts` is what lists tell of it,
`pool` holds several models by name; `caches` keeps the KV caches of chats in a folder while the slot
serves others.
"""
