"""What passes cost by width."""
