"""Owns models, contexts and the engine thread; faces send it requests and read events.

Files: `loading` makes target, draft model and drafter from settings, `generation` is one answer under way, `engine`
runs the thread and gives slots to requests.
"""
