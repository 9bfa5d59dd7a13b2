"""What every command shares: how it runs and its common options (`app`), how a terminal shows tables and waiting."""
