"""Stand-ins for what is far away: a server of S3, and many committers."""
