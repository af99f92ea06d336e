"""How committers wait for one another: the line behind the commit lock, group commits and tickets far away."""
