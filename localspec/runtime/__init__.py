"""Owns models, contexts and the engine thread; faces send it requests and read events.

`loading` makes target, draft model and drafter from settings, `worker` is the thread that gives slots to requests,
`generation` is one answer under way, `engine` is what callers hold, `pool` holds several models by name.
"""
