"""The command ``python -m hflray.tune.queue`` runs long sweeps one after the other in the background at low priority.

Each item of the list is one sweep. It runs from a git worktree of one commit and in its own environment, see
`hflray.tune.frozen`, so that it can be stopped and continued while the repository changes. Every half hour its export
replaces the one in the repository, and ``tune_configs/RESULTS.md`` is written again from all exports. The queue commits
nothing.

Every process of the queue has an environment variable by which `stop` identifies the processes that remain. This works
on Linux only.

| module | purpose |
|---|---|
| `command` | is the command line |
| `runner` | runs the items one after the other |
| `processes` | starts and ends the processes of the items |
| `publishing` | puts exports into the repository |
| `status` | reports the progress |
| `lock` | ensures that one queue runs in a folder |

The list and the state of an item are in `hflray.tune.items`.
"""
