"""Other projects' models and libraries, which conversions, tests and benches compare with."""
