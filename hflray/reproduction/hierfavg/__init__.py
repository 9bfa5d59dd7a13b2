"""HierFAVG (arXiv 1905.06641): its sweep files and claims."""
