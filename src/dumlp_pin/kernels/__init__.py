"""Faster ways to compute what `functional` and `blocks` define; `choose` decides which one runs."""
