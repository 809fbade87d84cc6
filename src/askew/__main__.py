"""python -m askew: the askew command."""

from askew.entry import main

if __name__ == "__main__":
    main()
