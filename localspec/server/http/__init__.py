"""The HTTP side: sockets, guards, routes, logs and metrics."""
