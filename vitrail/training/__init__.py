"""Training: one loop, and what it uses: objectives, optimizer, schedule, snapshots, progress."""
