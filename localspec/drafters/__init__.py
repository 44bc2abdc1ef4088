"""Everything that guesses: one file per method. `localspec.methods` has the table of them; `runtime` composes them."""
