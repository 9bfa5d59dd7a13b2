"""Figures, tables and pages of finished runs."""
