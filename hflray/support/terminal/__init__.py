"""What every command shares: how a command line runs (`app`), and how tables and waiting look on a terminal."""
