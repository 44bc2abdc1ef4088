"""What is kept between runs: caches, past answers, costs, settings."""
