"""Models of a hub: found, planned, fetched and checked."""
