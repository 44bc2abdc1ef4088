"""Models in a process of their own, which is a server: whatever ends it, the program that asks goes on."""
