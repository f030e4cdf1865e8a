"""What the project measures: suites, the reference tables, speed."""
