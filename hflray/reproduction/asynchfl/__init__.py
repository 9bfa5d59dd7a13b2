"""Async-HFL (arXiv 2301.06646): its sweep files and claims."""
