"""The command ``hflray``: `cli` names its subcommands; `check`, `data`, `doctor`, `new` and `report` stand here."""
