"""The command ``python -m hflray.tune.queue``: long runs, one after the other, in the background at low priority.

Each item of the list is one sweep. It runs from a git worktree of one commit and in an environment of its own, see
`hflray.tune.frozen`, so that it can be stopped and goes on from the round it was in while the repository changes. Every
half hour its export replaces the one in the repository, and ``tune_configs/RESULTS.md`` is written anew from all
exports. The queue commits nothing.

All that it starts carries an environment variable, by which `stop` finds what is left of it: Linux only.

`command` is the command line, `runner` runs the items one after the other, `processes` starts and ends what they run
in, `publishing` puts exports into the repository, `status` says how far it is, `lock` lets one queue run in a folder.
The list and what is known of an item are in `hflray.tune.items`.
"""
