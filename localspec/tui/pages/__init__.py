"""What screens show, without a screen."""
