"""``python -m hflray.tune.queue``, the former name of ``python -m hflray.reproduction.queue``."""

from hflray.reproduction.queue.command import main

if __name__ == "__main__":
    main()
