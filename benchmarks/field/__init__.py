"""Several processes on one array, some of them killed: what each store loses, tears and refuses, and how fast it is."""
