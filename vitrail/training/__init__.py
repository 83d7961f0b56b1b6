"""One loop, and what it needs: objectives, optimizer, schedule, snapshots, progress."""
