"""llama.cpp itself: its functions, structs, handles and settings, and what its library does to a process."""
