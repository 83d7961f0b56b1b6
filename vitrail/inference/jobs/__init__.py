"""Jobs over many pictures: rows stream from a model into a file, by one or several processes, and survive any kill."""
