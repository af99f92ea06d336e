"""The public names of serving: a repository over HTTP, as an ASGI application."""

from txstore.serving.application import application

__all__ = ["application"]
