"""The files and folders that contain samples, on this machine or behind a URL."""
