"""Files of strangers: mutated ones of every format, and texts and sizes that attack the reader."""
