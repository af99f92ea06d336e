"""Feeds: durable cursors in the history, from which jobs take each change once. docs/how-to/feeds.md."""

from txstore.feeds.changes import FeedChange, FeedNode
from txstore.feeds.feed import Feed, FeedStatus
from txstore.feeds.named_feeds import Feeds
from txstore.feeds.shares import Share

__all__ = ["Feed", "FeedChange", "FeedNode", "FeedStatus", "Feeds", "Share"]
