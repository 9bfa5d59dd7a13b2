"""What repeats and judges the paper: its exhibits, its claims and their evidence."""
