"""The paper's claims on each of its figures and tables, and how our runs are held against them."""
