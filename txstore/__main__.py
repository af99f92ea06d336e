"""`python -m txstore` is `txstore`."""

from txstore.cli.main import app

if __name__ == "__main__":
    app(prog_name="txstore")
