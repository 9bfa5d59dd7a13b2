"""TSDP (arXiv 2408.09076): its assigner, sweep files and claims."""
