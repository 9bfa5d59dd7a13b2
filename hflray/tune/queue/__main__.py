"""``python -m hflray.tune.queue``."""

from hflray.tune.queue.command import main

if __name__ == "__main__":
    main()
