"""Ways in and out for tools that do not know TxStore."""
