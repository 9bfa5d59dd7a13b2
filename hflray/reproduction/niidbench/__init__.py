"""NIID-Bench as Flower ran it again: its sweep files and claims."""
