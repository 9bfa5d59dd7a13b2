"""Damaged results folders, and results folders from strangers."""
