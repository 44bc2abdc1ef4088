"""Models in a process of their own, which is a server. However it ends, the program that asks goes on."""
