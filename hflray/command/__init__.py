"""The command ``hflray``: `cli` names its subcommands, and `data`, `doctor` and `new` are those that stand here."""
