"""Figures and tables from finished runs."""
