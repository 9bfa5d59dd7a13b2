"""MTGC (arXiv 2409.18448): its sweep files and claims."""
