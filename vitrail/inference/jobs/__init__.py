"""Runs jobs over many pictures: rows stream into a file from one or several processes, and can be resumed after a
kill."""
