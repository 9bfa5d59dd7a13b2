"""Leaderboards: the shipped assigners and schedulers, and any of the user's own, on fixed instances."""
