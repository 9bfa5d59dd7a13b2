"""The paper's claims about each of its figures and tables, and the tests that compare our runs with them."""
