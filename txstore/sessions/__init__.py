"""What threads may do with one store: successive transactions, statements, the door that a commit closes."""
