"""What threads may do with one store: successive transactions, operations, the gate that a commit closes."""
