"""Import and export for tools that do not know TxStore."""
