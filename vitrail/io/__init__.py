"""Files written whole or not at all, checksums, folders that appear when they are complete, progress. No torch here."""
