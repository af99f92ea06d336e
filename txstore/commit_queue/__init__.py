"""Queues committers: under the commit lock on a file system, by group commits on an object store."""
