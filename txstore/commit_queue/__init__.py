"""Queues committers: under the commit lock on a file system, by group commits and tickets on an object store."""
