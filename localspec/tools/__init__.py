"""Tools of MCP servers: the file of servers, their processes, what may be called unasked, answers that call."""
