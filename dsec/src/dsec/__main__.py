"""`python -m dsec` is the command `dsec`."""

from dsec.cli.main import main

if __name__ == "__main__":
    main()
