"""The command ``python -m hflray.reproduction.queue`` runs long sweeps one after the other in the background.

Each item of the list is one sweep. It runs at low priority, from a git worktree of one commit and in its own
environment (`hflray.reproduction.queue.frozen`), so that it can be stopped and continued while the repository changes.
Every half hour its export replaces the one in the repository, and ``tune_configs/RESULTS.md`` is written again from all
exports. The queue commits nothing.

Every process of the queue has an environment variable by which `stop` identifies the processes that remain. This works
on Linux only.

| module | purpose |
|---|---|
| `command` | is the command line |
| `runner` | runs the items one after the other |
| `processes` | starts and ends the processes of the items |
| `publishing` | puts exports into the repository |
| `status` | reports the progress |
| `items` | holds the list, the state of each item and its progress |
| `frozen` | freezes the code and the environment of an item |
| `lock` | ensures that one queue runs in a folder |
"""
