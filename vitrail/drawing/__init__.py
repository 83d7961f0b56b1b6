"""Pictures and pages: what every report of ours is made of. No torch here."""
