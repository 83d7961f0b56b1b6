"""Where weights live: the bundle, and two-way maps for the formats of the field."""
