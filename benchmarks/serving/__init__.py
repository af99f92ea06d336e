"""Plain Zarr over HTTP, and the page in a browser."""
